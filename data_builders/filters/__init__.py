"""Filters of records: of their structure, of what their texts say, of repetition."""
