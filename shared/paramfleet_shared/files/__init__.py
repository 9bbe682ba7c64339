"""Files and folders that others may have made, opened and read with care."""
