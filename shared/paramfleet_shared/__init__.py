"""What every process of a job agrees on: errors, settings, wire, tables, discovery."""
