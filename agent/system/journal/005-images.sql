-- The image that the sandbox's disk begins with; null for the default image of its host. While the
-- sandbox waits for its image, its uid is negative: it has no user yet.
ALTER TABLE sandboxes ADD COLUMN image TEXT; -- JSON: SandboxBase
