# The few commands of daily work. Everything runs under the Node that npm put into node_modules, so that the system's
# may be older.

export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

.PHONY: test check format demo up

node_modules: package-lock.json
	npm ci
	touch node_modules

test: node_modules
	npm test

# Types, format and lint, layout.
check: node_modules
	npm run check
	node --test test/tidy.test.ts

format: node_modules
	npm run format

# The main job end to end on an embedded Postgres; exits 0 only if what happened is right.
demo: node_modules
	npx fleet demo

up: node_modules
	npx fleet up
