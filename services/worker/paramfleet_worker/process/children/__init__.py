"""The processes of a job: started, read to their end, ended with all that they started."""
