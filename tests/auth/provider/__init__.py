"""A real OpenID Connect provider for the tests: django-oauth-toolkit as a Django project of its own.

It knows two people, ada and eve, and one client.
"""

CLIENT_ID, SECRET, PASSWORD = "assay", "known to the two of them", "a password at the provider"
