all: build/shim

# Static: it runs as long as its machine, during which the host's libraries may be upgraded.
build/shim: $(call sources,shim) common/lock.c common/shim-files.c common/shim-log.c \
		$(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)
