export { createMcpServer, type McpOptions } from './server.ts';
