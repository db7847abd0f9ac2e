"""What only the tables of the papers use: judges and attacks that no command of the package reaches."""
