"""The MCP server: sessions and tasks as tools for other agents, over streamable HTTP at ``/mcp``.

``endpoint`` admits a request, ``protocol`` speaks MCP through the official SDK, ``tools`` lists the tools, and
``reading``, ``acting`` and ``turns`` carry them out with the services that the REST API calls.
"""
