# etcd-wrapper: `make help` lists the targets. run, build and test need only Go; docs/contributing.md explains when to use which.

GO ?= go
# The commit has a fixed number of digits, because git would use more of them in a larger clone.
VERSION ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo unknown)
GOLANGCI_LINT_VERSION := v2.15.0
# Building the linter takes a minute or two, so each version is kept outside the checkout.
GOLANGCI_LINT := $(firstword $(subst :, ,$(shell $(GO) env GOPATH)))/bin/golangci-lint-$(GOLANGCI_LINT_VERSION)
FUZZTIME ?= 10s
CYCLES ?= 50
ROUNDS ?= 10

# The race detector needs a C compiler. Without one the tests run without it, after a warning.
RACE := $(if $(shell command -v gcc cc clang 2>/dev/null),-race,)

BACKUP_STORE ?= file://$(CURDIR)/.run/backups
BENCH ?=
PUSH ?=
TAG ?= latest
DEPLOY ?=
# The Kubernetes version for make test-deploy: newest or oldest (see testdata/kubernetes).
KUBERNETES ?= newest
ETCD ?=
# The URL of the repository that publishes a release, and the image that the released chart uses.
REPOSITORY ?= https://example.org/etcd-wrapper
IMAGE ?= etcd-wrapper
KEY ?=

.DEFAULT_GOAL := help
.PHONY: help fetch run build cross image release release-check releasable always test bench lint test-backup test-recovery test-maintenance test-faults test-robustness test-etcd test-downgrade test-chart test-deploy test-crash dot picture pictures screenshots fuzz cover ci clean

help: ## List the targets
	@echo 'etcd-wrapper: make run starts an etcd to try, make ci does what CI does. Most targets need only Go:'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

run: build ## Run a single etcd member, without a sidecar, with its data in .run and its backups in .run/backups or BACKUP_STORE; Ctrl-C stops it
	@mkdir -p .run/backups; [ -t 2 ] && format=console || format=json; \
	exec bin/etcd-wrapper start-etcd --standalone --volume-dir=.run --stored-config-path=.run/etcd.conf.yaml --log-format=$$format \
		--backup-store='$(BACKUP_STORE)'

fetch: ## Download all modules, including those of etcd 3.4 and 3.5 for tests; after that make test needs no network
	$(GO) mod download
	cd testdata/etcd34 && $(GO) mod download
	cd testdata/etcd35 && $(GO) mod download

build: ## Build bin/etcd-wrapper, static and stamped with the version
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/etcd-wrapper ./cmd/etcd-wrapper

cross: ## Check that the program builds for arm64 on macOS and Linux
	@for system in darwin linux; do \
		CGO_ENABLED=0 GOOS=$$system GOARCH=arm64 $(GO) build -trimpath -o /dev/null ./cmd/etcd-wrapper || exit 1; \
	done

# The binaries for the targets image and release. Everything that could differ between machines is set, so that the same commit
# and the same version of Go always produce the same bytes.
bin/%/etcd-wrapper: always
	@GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 GOOS=$(firstword $(subst -, ,$*)) GOARCH=$(lastword $(subst -, ,$*)) \
	$(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)$(if $(REPOSITORY), -X etcd-wrapper/readiness/page.docs=$(REPOSITORY)/blob/$(VERSION)/)' -o $@ ./cmd/etcd-wrapper

# Environment variables of image.sh and release.sh in deploy/release.
COMMIT = VERSION='$(VERSION)' REVISION="$$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	CREATED="$$(git log -1 --format=%ct 2>/dev/null || echo 0)"

image: bin/linux-amd64/etcd-wrapper bin/linux-arm64/etcd-wrapper ## Build an OCI image for amd64 and arm64 in bin/image, without a daemon; PUSH=REGISTRY/REPOSITORY:TAG pushes it
	@$(COMMIT) OUT=$(CURDIR)/bin/image TAG='$(TAG)' PUSH='$(PUSH)' deploy/release/image.sh $(addprefix $(CURDIR)/,$(filter bin/%,$^))

release: TAG = $(VERSION)
release: releasable bin/darwin-amd64/etcd-wrapper bin/darwin-arm64/etcd-wrapper image ## Write the files of release VERSION=v1.0.0 into dist: archives, image, chart, checksums and more; KEY=FILE signs them
	@$(COMMIT) OUT=$(CURDIR)/dist LAYOUT=$(CURDIR)/bin/image REPOSITORY='$(REPOSITORY)' IMAGE='$(IMAGE)' KEY='$(abspath $(KEY))' \
		deploy/release/release.sh $(foreach platform,darwin-amd64 darwin-arm64 linux-amd64 linux-arm64,$(CURDIR)/bin/$(platform)/etcd-wrapper)

releasable:
	@echo '$(VERSION)' | grep -Eqx 'v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?' || \
		{ echo 'invalid version of a release: $(VERSION) (set a version such as VERSION=v1.0.0)' >&2; exit 1; }
	@grep -m1 '^## v' docs/changelog.md | grep -Fqx '## $(firstword $(subst -, ,$(VERSION)))' || \
		{ echo 'the newest version in docs/changelog.md is not $(VERSION): describe the changes there' >&2; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo 'there are uncommitted changes: commit or remove them, because a release is built from a commit' >&2; exit 1; }

# The second release starts with an empty Go cache, so that it cannot reuse anything from the first one.
release-check: SIGNED = KEY='$(abspath $(KEY))'
release-check: releasable ## Make the release of VERSION=v1.0.0 twice, from scratch in two folders, and compare the bytes
	cd deploy/release && $(GO) test -count=1 -timeout 20m ./...
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	git clone -q . "$$dir/one" && git clone -q . "$$dir/elsewhere/two" && \
	$(MAKE) -C "$$dir/one" release $(SIGNED) && (umask 077 && GOCACHE="$$dir/cache" TZ=Asia/Tokyo $(MAKE) -C "$$dir/elsewhere/two" release $(SIGNED)) && \
	diff -rq "$$dir/one/dist" "$$dir/elsewhere/two/dist" && echo 'both releases have the same bytes' && cat "$$dir/one/dist/SHA256SUMS"

# The suites mostly wait, so four packages at a time are faster even on two cores. vet is off, because make lint runs more of its
# checks than go test would.
test: ## Run every test, with the race detector
	@$(if $(RACE),,echo 'WARNING: no C compiler found, the tests run without the race detector')
	$(GO) test $(RACE) -vet=off -p 4 -timeout 40m ./...

bench: ## Measure the wrapper and plain etcd side by side, and print the table; BENCH='-args -strict -growth -only=start' for more or less
	@cd cmd/suites/bench && $(GO) test -tags bench -run '^TestBench$$' -count=1 -timeout 120m $(BENCH)

BACKUP_STORES := $(addprefix ./backup/store/,s3 gcs azblob)

test-backup: ## Run the backup tests against real object store servers on loopback, which are built once (npm installs one)
	$(GO) test ./backup/...
	$(GO) test ./backup -count=1 -timeout 30m -run EveryStored -args -histories 20
	$(GO) test ./cmd/suites/backups -count=1 -timeout 120m -v -args -whole -cycles $(CYCLES)
	$(GO) test -count=1 -timeout 30m -run Server -v $(BACKUP_STORES) -args -servers
	$(GO) test -count=1 -timeout 120m -run Server -v ./cmd/suites/backups -args -servers -cycles $(CYCLES)

test-faults: ## Run the whole fault suite with the real program, and with strace if it is installed, and print its table
	$(GO) test ./cmd/suites/faults -count=1 -timeout 10m -faults -crash-cycles $(CYCLES) -v

test-robustness: ## Run etcd's robustness suite against our clusters, ROUNDS (10) of each kind: three members standalone or with sidecars, and one with --backup-ack=stored on a folder or a slow S3 server; with kills, stops, pauses, lost volumes and maintenance
	cd testdata/robustness && $(GO) test -count=1 -timeout 600m -v . -args -servers -rounds $(ROUNDS)

test-etcd: ## Run etcd's end-to-end tests as root, with plain etcd and with this program, and compare the results
	cd testdata/robustness && $(GO) test -count=1 -timeout 600m -v ./suites $(ETCD)

test-downgrade: fetch ## Check with real processes that etcd 3.5 can read data that was kept readable for it, in single members and in clusters
	$(GO) test ./member/dataversion -count=1 -timeout 20m -downgrade -v
	$(GO) test ./cmd/suites/endtoend -count=1 -timeout 20m -run Downgrade -downgrade -v

test-chart: ## Render the Helm chart and check it against the program; builds helm once, in a few minutes
	$(GO) test -count=1 ./deploy
	cd testdata/deploy && $(GO) test -count=1 ./chart
	cd testdata/rules && $(GO) test -count=1 ./...

test-deploy: test-chart ## Install the chart in a real Kubernetes and run its pods, as root; builds Kubernetes once, in 15 minutes; KUBERNETES=oldest uses the oldest version
	cd deploy/release && $(GO) test -count=1 -timeout 20m -run Image ./...
	cd testdata/deploy && $(GO) test -count=1 ./node
	cd testdata/deploy && KUBERNETES=$(KUBERNETES) $(GO) test -count=1 -timeout 60m -v ./stories $(DEPLOY)
	$(GO) test ./cmd/suites/faults -count=1 -timeout 60m -run Stored_kubernetes -v -args -servers -kube-apiserver $(CURDIR)/bin/test-deploy/$(KUBERNETES)/kube-apiserver

test-maintenance: ## Simulate a day of maintenance within minutes, with defragmentations, slow snapshots, kills and an exceeded quota under load; as root, also grow and shrink a cluster
	$(GO) test ./cmd/suites/faults -count=1 -timeout 30m -run Maintenance -maintenance -v

test-crash: ## Kill the program CYCLES (50) times while clients write, and check that no acknowledged write is lost
	$(GO) test ./cmd/suites/faults -count=1 -timeout 120m -run FaultCrashLoop -crash-cycles $(CYCLES) -v

test-recovery: ## Cause ROUNDS (10) disasters while clients write, with a real S3 server, and interrupt recovery at every step
	$(GO) test ./recovery -count=1 -timeout 30m -args -everywhere
	$(GO) test ./cmd/suites/recovery -count=1 -timeout 600m -v -args -whole -servers -seed 0 -rounds $(ROUNDS)
	$(GO) test ./cmd/suites/endtoend -run 'Member' -count=1 -timeout 30m -args -members

lint: $(GOLANGCI_LINT) ## Check formatting, style and the direction of imports; builds the linter once, in a minute or two
	$(GOLANGCI_LINT) run --allow-serial-runners

dot: ## Regenerate the diagrams and the matrix from transition tables and imports, also those in docs; needs Graphviz
	$(GO) test ./lifecycle ./recovery ./backup/writer ./cmd/docs -run 'Committed' -update

pictures: ## Redraw the pictures of the documentation: diagrams from docs/pictures/*.d2, charts from the benchmarks' rows, the recording from a run
	$(GO) test ./cmd/suites/endtoend -count=1 -run ReadmeCommands -update
	$(GO) test ./cmd/docs -count=1 -run 'Chart|Recording' -update
	cd testdata/pictures && $(GO) test -count=1 . -update

picture: ## Retake docs/page.png, the page of a healthy member; needs Chromium
	@shots=$$(mktemp -d) && $(GO) test ./readiness/page -count=1 -run thePageInEveryState -screenshots $$shots && \
	cp $$shots/serving-1280-light.png docs/page.png && rm -r $$shots

screenshots: ## Take pictures of the page in ten states, on a desk and a phone, light and dark, into bin/screenshots; needs Chromium
	@mkdir -p bin/screenshots && $(GO) test ./readiness/page -count=1 -run thePageInEveryState -screenshots $(CURDIR)/bin/screenshots

# Go's fuzzer sometimes fails with nothing but "context deadline exceeded" when its time is up. A second run
# cannot hide a bug, because the input that failed is then in testdata/fuzz and is tried first.
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@$(GO) list ./... | while read -r package; do \
		for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			fuzz="$(GO) test -run ^$$ -fuzz ^$$target$$ -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$package"; \
			$$fuzz || $$fuzz || exit 1; \
		done; \
	done

cover: ## Run the tests and show how much of each package they cover
	$(GO) test -coverprofile=coverage.out ./...
	$(GO) tool cover -func=coverage.out | tail -n 1

ci: fetch lint build cross test test-crash fuzz ## Do what CI does: fetch, lint, build, cross, test, test-crash and fuzz

clean: ## Remove what was built, and the data of make run
	rm -rf bin dist .run coverage.out

$(GOLANGCI_LINT):
	@mkdir -p $(dir $@)
	built=$$(mktemp -d) && GOBIN=$$built $(GO) install -ldflags '-s -w' github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION) && \
	mv $$built/golangci-lint $@ && rmdir $$built
