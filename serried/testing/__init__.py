"""Test doubles and builders that ship with the product."""
