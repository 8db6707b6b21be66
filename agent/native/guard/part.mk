all: build/guard

build/guard: $(call sources,guard) $(HEADERS) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -o $@ $(compiled)
