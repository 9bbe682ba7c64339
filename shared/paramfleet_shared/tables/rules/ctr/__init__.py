"""The rule of tables with an accessor: statistics of a row, and two rules for its parts."""
