"""What a table will need: decisions about numbers, before there is a job."""
