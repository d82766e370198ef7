"""The skills as the agent, the MCP server and ``numprobe skills`` see them."""
