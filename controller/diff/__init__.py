"""What is to be done for one owner: what is there in, changes out. Pure."""
