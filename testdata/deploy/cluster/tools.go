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

// Checkout returns the root directory of the project.
func Checkout() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// tools returns the directory that contains the programs built by Build.
func tools() string { return filepath.Join(Checkout(), "bin", "test-deploy") }

// which returns the Kubernetes version to build and run. The environment variable KUBERNETES is either "newest" (the
// default) or "oldest", the oldest version that the chart supports. Each Kubernetes version has its own module.
func which() string { return cmp.Or(os.Getenv("KUBERNETES"), "newest") }

// ofKubernetes lists the programs that depend on the Kubernetes version.
var ofKubernetes = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

// stamp returns linker flags that set the version of the Kubernetes programs to the version in their module. The
// order of the flags must not vary, or Go would relink the programs.
func stamp() (string, error) {
	module := filepath.Join(Checkout(), "testdata/kubernetes", which(), "go.mod")
	content, err := os.ReadFile(module)
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)`).FindSubmatch(content)
	if version == nil {
		return "", fmt.Errorf("%s does not require k8s.io/kubernetes", module)
	}
	flags := "-s -w"
	for _, stamped := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} { // the version is set in both packages, because older API servers report that of client-go
		flags += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
			stamped, version[1], version[2], version[3])
	}
	return flags, nil
}

// Build builds Kubernetes, helm, runc, an S3 server, the scripted sidecar, and the project's image and release files.
// Kubernetes and helm have their own modules, because their dependencies would affect the versions used by other
// programs.
//
// The first build takes 15 minutes on two cores, and later builds take seconds. If TEST_DEPLOY_BUILT is set, Build
// does nothing: the programs and the image must already be in bin/test-deploy and bin/image.
func Build() error {
	if os.Getenv("TEST_DEPLOY_BUILT") != "" {
		return nil
	}
	return errors.Join(
		BuildHelm(),
		buildKubernetes(),
		build("testdata/deploy", "1", "github.com/opencontainers/runc"), // runc needs C to enter namespaces before the Go runtime starts
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

// buildKubernetes builds Kubernetes without the cloud providers that older versions contain.
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

// BuildHelm builds helm 4.
func BuildHelm() error {
	return build("testdata/helm", "0", "-ldflags", "-s -w", "helm.sh/helm/v4/cmd/helm")
}

// BuildHelm3 builds helm 3, which is still widely used, as helm3/helm.
func BuildHelm3() error {
	return run(".", []string{"CGO_ENABLED=0", "GOBIN=" + filepath.Dir(Tool("helm3/helm"))}, "go", "install", "-p", "2", "helm.sh/helm/v3/cmd/helm@v3.21.4")
}

// Version is the version with which Build stamps the program in the image.
const Version = "v0.0.0-test"

// build builds programs from one of the project's modules.
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

// Released returns the paths of the published charts of all earlier versions.
func Released() []string {
	charts, err := filepath.Glob(filepath.Join(Checkout(), "testdata/deploy/released/*.tgz"))
	if err != nil || len(charts) == 0 {
		panic(fmt.Sprintf("no charts found in testdata/deploy/released: %v", err))
	}
	return charts
}

// Published returns the directory with the release files for this machine's platform.
func Published() string { return filepath.Join(tools(), "dist") }

// Tool returns the path of a program built by Build.
func Tool(name string) string {
	if slices.Contains(ofKubernetes, name) {
		return filepath.Join(tools(), which(), name)
	}
	return filepath.Join(tools(), name)
}

// Wrapper returns the path of the program under test, which is the binary in the image.
func Wrapper() string {
	return filepath.Join(Checkout(), "bin", "linux-"+runtime.GOARCH, "etcd-wrapper")
}
