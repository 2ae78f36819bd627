package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Checkout is the root of the project, seen from a package of this module that is two folders below the module's.
func Checkout() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// tools returns the folder of the programs that Build makes of the module's tool lines.
func tools() string { return filepath.Join(Checkout(), "bin", "test-deploy") }

// which returns the Kubernetes to build and run, by KUBERNETES: oldest, the oldest that the chart supports, or newest, the default. Each has its
// versions in a module of its own.
func which() string { return cmp.Or(os.Getenv("KUBERNETES"), "newest") }

// ofKubernetes are the programs that differ between the two.
var ofKubernetes = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

// stamp returns linker flags with the version of the programs of Kubernetes, from their module. Their order is fixed, because otherwise the programs
// would be linked again each time.
func stamp() (string, error) {
	module := filepath.Join(Checkout(), "testdata/kubernetes", which(), "go.mod")
	content, err := os.ReadFile(module)
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)`).FindSubmatch(content)
	if version == nil {
		return "", fmt.Errorf("%s has no version of k8s.io/kubernetes", module)
	}
	flags := "-s -w"
	for _, stamped := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} { // older API servers report whole seconds
		flags += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
			stamped, version[1], version[2], version[3])
	}
	return flags, nil
}

// Build makes the programs of Kubernetes, which have a module of their own so that nothing else changes what they are
// built from, runc, a server of S3's protocol, the scripted sidecar, the project's image and what is published of it.
// The first time takes a quarter of an hour on two cores; with Go's cache it takes seconds. With TEST_DEPLOY_BUILT
// nothing is built: bin/test-deploy and bin/image then hold what an earlier run has left there, or programs of
// Kubernetes from elsewhere.
func Build() error {
	if os.Getenv("TEST_DEPLOY_BUILT") != "" {
		return nil
	}
	return errors.Join(
		BuildHelm(),
		buildKubernetes(),
		build("testdata/deploy", "1", "github.com/opencontainers/runc"), // it enters namespaces before the Go runtime starts, which needs C
		build("testdata/deploy", "0", "./sidecar"),
		build("testdata/servers", "0", "github.com/versity/versitygw/cmd/versitygw"),
		run("testdata/crds", nil, "go", "mod", "download"),
		run(".", nil, "make", "image", "VERSION="+Version, "TAG="+Version),
		run(".", []string{
			"OUT=" + Published(), "LAYOUT=" + filepath.Join(Checkout(), "bin", "image"), "VERSION=" + Version, "REVISION=unknown", "CREATED=0",
			"REPOSITORY=https://example.org/etcd-wrapper", "IMAGE=etcd-wrapper", "KEY=",
		}, "deploy/release/release.sh", Wrapper()),
	)
}

// buildKubernetes leaves out the cloud providers of older versions.
func buildKubernetes() error {
	version, err := stamp()
	if err != nil {
		return err
	}
	args := []string{"-tags", "providerless", "-ldflags", version}
	for _, name := range ofKubernetes {
		args = append(args, "k8s.io/kubernetes/cmd/"+name)
	}
	return buildInto(filepath.Dir(Tool("kubectl")), filepath.Join("testdata/kubernetes", which()), "0", args...)
}

// BuildHelm makes helm, which has a module of its own for the same reason.
func BuildHelm() error {
	return build("testdata/helm", "0", "-ldflags", "-s -w", "helm.sh/helm/v4/cmd/helm")
}

// BuildHelm3 makes the helm before it, which many still run, as helm3/helm.
func BuildHelm3() error {
	return run(".", []string{"CGO_ENABLED=0", "GOBIN=" + filepath.Dir(Tool("helm3/helm"))}, "go", "install", "-p", "2", "helm.sh/helm/v3/cmd/helm@v3.21.4")
}

// Version is the version in the image.
const Version = "v0.0.0-test"

// build makes programs of a module of the project.
func build(module, cgo string, args ...string) error {
	return buildInto(tools(), module, cgo, args...)
}

func buildInto(folder, module, cgo string, args ...string) error {
	return run(module, []string{"CGO_ENABLED=" + cgo}, "go", append([]string{"build", "-p", "2", "-o", folder + "/"}, args...)...)
}

func run(folder string, env []string, name string, args ...string) error {
	command := exec.Command(name, args...)
	command.Dir, command.Env = filepath.Join(Checkout(), folder), append(os.Environ(), env...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w\n%s", strings.Join(append([]string{name}, args...), " "), folder, err, out)
	}
	return nil
}

// Released are the charts of all earlier versions, as they were published.
func Released() []string {
	charts, err := filepath.Glob(filepath.Join(Checkout(), "testdata/deploy/released/*.tgz"))
	if err != nil || len(charts) == 0 {
		panic(fmt.Sprintf("there are no charts in testdata/deploy/released: %v", err))
	}
	return charts
}

// Published is the folder of a release, for this machine's platform: the one that Build made, or any that was put there.
func Published() string { return filepath.Join(tools(), "dist") }

// Tool is the path of a program that Build made.
func Tool(name string) string {
	if slices.Contains(ofKubernetes, name) {
		return filepath.Join(tools(), which(), name)
	}
	return filepath.Join(tools(), name)
}

// Wrapper is the program under test, as it is in the image.
func Wrapper() string {
	return filepath.Join(Checkout(), "bin", "linux-"+runtime.GOARCH, "etcd-wrapper")
}
