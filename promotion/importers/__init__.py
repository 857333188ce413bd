"""Readers of what other systems recorded. They import no ORM: a folder in, a record and findings out."""
