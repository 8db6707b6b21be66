all: build/holes.so

build/holes.so: $(call sources,holes) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -fPIC -shared -o $@ $(compiled)
