"""Tests of the pages: what they show, to whom, and what their forms do."""
