"""The vocabulary every other package shares: requests, plans, results, layouts, records and errors. Imports the standard library only."""
