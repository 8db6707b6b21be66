all: build/disk

build/disk: $(call sources,disk) common/disk-failure.c common/disk-loop.c $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -o $@ $(compiled)
