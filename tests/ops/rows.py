"""All rows of the op table."""

import rows_pointwise
import rows_reductions
import rows_structure

ROWS = [*rows_pointwise.ROWS, *rows_reductions.ROWS, *rows_structure.ROWS]

# Ops whose tests are not samples of a call: op -> where.
COVERED_ELSEWHERE = {}
