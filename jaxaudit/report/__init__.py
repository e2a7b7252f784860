"""Reports of a run: results.json, one tidy table, figures and a self-contained HTML page."""

from jaxaudit.report.html import headline_numbers
from jaxaudit.report.write import write_run

__all__ = ["headline_numbers", "write_run"]
