all: build/hydrate

# Static: it runs as long as its disk is mounted, during which libraries may be upgraded.
build/hydrate: $(call sources,hydrate) common/disk-failure.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -pthread -o $@ $(compiled)
