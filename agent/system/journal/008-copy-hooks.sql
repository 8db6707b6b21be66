ALTER TABLE sandboxes ADD COLUMN hook TEXT; -- JSON: HookResult of the memory that it runs from
