"""Stored responses of the Responses API."""
