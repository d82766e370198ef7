"""The skills and the answers as an MCP server: stdio, or streamable HTTP on this machine with a token."""
