// Package release contains the scripts that build the image and the release files, and tests that check the results.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

// platforms lists the platforms of a release, spelled as in the names of the binaries.
var platforms = []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"}

// programDir is the directory of a program that prints its arguments and environment. The tests build this program
// for all platforms and release it instead of etcd-wrapper.
var programDir string

func TestMain(m *testing.M) {
	var err error
	if programDir, err = os.MkdirTemp("", "program"); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(programDir)
	os.Exit(status)
}

// A release contains the environment variables for release.sh.
type release map[string]string

// prepared returns the environment variables for a release, and the paths of the binaries to release: a trivial
// program for each platform. The image in the release is an index without platforms.
func prepared(t *testing.T) (r release, binaries []string) {
	t.Helper()
	source := map[string]string{"go.mod": "module program\n\ngo 1.26.0\n", "main.go": "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(os.Args[1:], os.Environ()) }\n"}
	for name, text := range source {
		require.NoError(t, os.WriteFile(filepath.Join(programDir, name), []byte(text), 0o600))
	}
	for _, platform := range platforms {
		binaries = append(binaries, build(t, programDir, platform, "0"))
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	require.NoError(t, os.Mkdir(image, 0o755))
	index := `{"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "sha256:` + strings.Repeat("ab", 32) +
		`", "size": 2, "annotations": {"org.opencontainers.image.ref.name": "v1.2.3"}}]}`
	for name, text := range map[string]string{"image/index.json": index, "image/oci-layout": `{"imageLayoutVersion": "1.0.0"}`, "image.tar": "an image"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return release{
		"VERSION": "v1.2.3", "REVISION": strings.Repeat("c0", 20), "CREATED": "1750000000",
		"REPOSITORY": "https://example.org/team/etcd-wrapper", "IMAGE": "registry.example.org/etcd-wrapper",
		"LAYOUT": image, "OUT": filepath.Join(dir, "dist"), "KEY": "",
	}, binaries
}

// write runs release.sh in a checkout.
func (r release) write(checkout string, binaries []string) error {
	command := exec.Command(filepath.Join(checkout, "deploy/release/release.sh"), binaries...)
	command.Env = os.Environ()
	for name, value := range r {
		command.Env = append(command.Env, name+"="+value)
	}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func build(t *testing.T, dir, platform, cgo string) (binary string) {
	t.Helper()
	system, processor, _ := strings.Cut(platform, "_")
	binary = filepath.Join(dir, platform, "etcd-wrapper")
	if _, err := os.Stat(binary); err == nil {
		return binary // already built by another test
	}
	command := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	command.Dir, command.Env = dir, append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS="+system, "GOARCH="+processor)
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// published runs release.sh and returns the contents of the release files, keyed by name.
func published(t *testing.T, r release, binaries []string) map[string]string {
	t.Helper()
	require.NoError(t, r.write("../..", binaries))
	files, err := os.ReadDir(r["OUT"])
	require.NoError(t, err)
	found := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r["OUT"], file.Name()))
		require.NoError(t, err)
		found[file.Name()] = string(content)
	}
	return found
}

func TestReleaseHasAllFilesAndTheSameBytesEachTime(t *testing.T) {
	r, binaries := prepared(t)
	first := published(t, r, binaries)
	var names []string
	for name := range first {
		names = append(names, name)
	}
	want := []string{"etcd-wrapper_v1.2.3_image.tar", "etcd-1.2.3.tgz", "etcd-wrapper.rb", "etcd.yaml", "provenance.intoto.json", "SHA256SUMS"}
	for _, platform := range platforms {
		want = append(want, "etcd-wrapper_v1.2.3_"+platform+".tar.gz", "etcd-wrapper_v1.2.3_"+platform+".cdx.json")
	}
	assert.ElementsMatch(t, want, names)
	assert.Equal(t, first, published(t, r, binaries))
}

// unpacked returns the contents of the files in an archive, keyed by name, and their headers.
func unpacked(t *testing.T, packed string) (files map[string]string, headers []*tar.Header) {
	t.Helper()
	plain, err := gzip.NewReader(strings.NewReader(packed))
	require.NoError(t, err)
	files = map[string]string{}
	for r := tar.NewReader(plain); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		files[header.Name] = string(content)
		headers = append(headers, header)
	}
}

func TestReleaseArchives_doNotDependOnTheMachine(t *testing.T) {
	r, binaries := prepared(t)
	all := published(t, r, binaries)
	for i, platform := range platforms {
		files, headers := unpacked(t, all["etcd-wrapper_v1.2.3_"+platform+".tar.gz"])
		want, err := os.ReadFile(binaries[i])
		require.NoError(t, err)
		assert.True(t, string(want) == files["etcd-wrapper"], platform)
		assert.Contains(t, files["LICENSE"], "Apache License")
		assert.Contains(t, files["NOTICES"], "==== std go1.")
		assert.Contains(t, files["systemd/etcd-wrapper.service"], "Type=notify")
		assert.Contains(t, files, "systemd/etcd.yaml")
		assert.Equal(t, "[man] [HOME=$HOME]\n", files["etcd-wrapper.1"])
		assert.Equal(t, "[completion zsh] [HOME=$HOME]\n", files["completion/_etcd-wrapper"])
		for _, header := range headers {
			assert.EqualValues(t, 1_750_000_000, header.ModTime.Unix())
			assert.Zero(t, header.Uid+header.Gid)
			assert.Empty(t, header.Uname+header.Gname)
		}
		assert.EqualValues(t, 0o755, headers[0].Mode)
		parts := cyclonedx.NewBOM()
		require.NoError(t, cyclonedx.NewBOMDecoder(strings.NewReader(all["etcd-wrapper_v1.2.3_"+platform+".cdx.json"]), cyclonedx.BOMFileFormatJSON).Decode(parts))
		assert.Contains(t, *parts.Metadata.Properties, cyclonedx.Property{Name: "cdx:gomod:binary:hash:SHA-256", Value: sum(want)})
		assert.Equal(t, "v1.2.3", parts.Metadata.Component.Version)
	}
}

func TestReleaseRejectsABinaryThatNeedsACLibrary(t *testing.T) {
	r, _ := prepared(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(programDir)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "linux_amd64")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c.go"), []byte("package main\n\nimport \"C\"\n"), 0o600))
	require.ErrorContains(t, r.write("../..", []string{build(t, dir, "linux_amd64", "1")}), "is built with CGO_ENABLED=1")
}

// tool builds a program, such as helm for the chart tests, from the module that pins its version.
func tool(t *testing.T, module, source string) (path string) {
	t.Helper()
	tools, err := filepath.Abs("../../bin/test-deploy")
	require.NoError(t, err)
	command := exec.Command("go", "build", "-p", "2", "-o", tools+"/", "-ldflags", "-s -w", source)
	command.Dir, command.Env = "../../testdata/"+module, append(os.Environ(), "CGO_ENABLED=0")
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(tools, module)
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	printed, err := exec.Command(tool(t, "helm", "helm.sh/helm/v4/cmd/helm"), args...).Output()
	require.NoError(t, err)
	return string(printed)
}

func TestReleaseChartRunsTheImageOfTheVersion(t *testing.T) {
	r, binaries := prepared(t)
	published(t, r, binaries)
	packed := filepath.Join(r["OUT"], "etcd-1.2.3.tgz")
	assert.Equal(t, helm(t, "template", "etcd-main", "../chart", "--set=image.repository=registry.example.org/etcd-wrapper,image.tag=v1.2.3"),
		helm(t, "template", "etcd-main", packed))
	var chart struct{ Name, Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal([]byte(helm(t, "show", "chart", packed)), &chart))
	assert.Equal(t, "etcd 1.2.3 v1.2.3", chart.Name+" "+chart.Version+" "+chart.AppVersion)
}

func TestReleaseFormulaAndManifestNameEachArchive(t *testing.T) {
	r, binaries := prepared(t)
	all := published(t, r, binaries)
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector    struct{ MatchLabels map[string]string }
				URI, Sha256 string
			}
		}
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(all["etcd.yaml"]), &map[string]any{}))
	require.NoError(t, yaml.Unmarshal([]byte(all["etcd.yaml"]), &manifest))
	require.Len(t, manifest.Spec.Platforms, len(platforms))
	for i, platform := range platforms {
		name := "etcd-wrapper_v1.2.3_" + platform + ".tar.gz"
		url := "https://example.org/team/etcd-wrapper/releases/download/v1.2.3/" + name
		one := manifest.Spec.Platforms[i]
		assert.Equal(t, platform, one.Selector.MatchLabels["os"]+"_"+one.Selector.MatchLabels["arch"])
		assert.Equal(t, url, one.URI)
		assert.Equal(t, sum([]byte(all[name])), one.Sha256)
		assert.Contains(t, all["etcd-wrapper.rb"], "url \""+url+"\"\n      sha256 \""+one.Sha256+"\"\n")
	}
}

// krew must install the program from the archive and link it under the name of the plugin.
func TestReleaseManifestIsInstalledByKrew(t *testing.T) {
	r, binaries := prepared(t)
	published(t, r, binaries)
	home := t.TempDir()
	archive := "etcd-wrapper_v1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	install := exec.Command(tool(t, "krew", "sigs.k8s.io/krew/cmd/krew"), "install",
		"--manifest="+filepath.Join(r["OUT"], "etcd.yaml"), "--archive="+filepath.Join(r["OUT"], archive))
	install.Env = append(os.Environ(), "KREW_ROOT="+home, "KREW_NO_UPGRADE_CHECK=1")
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "Installed plugin: etcd")
	printed, err := exec.Command(filepath.Join(home, "bin", "kubectl-etcd"), "--help").Output()
	require.NoError(t, err)
	assert.Contains(t, string(printed), "kubectl etcd [flags] COMMAND")
}

// brewScript is a Ruby program that does with our formula what Homebrew would do: it selects the archive for a
// platform and runs install. Instead of copying files, it prints their names.
//
//go:embed testdata/brewing.rb
var brewScript string

func TestReleaseFormulaInstallsOnEachPlatform(t *testing.T) {
	ruby, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: ruby is not installed")
	}
	r, binaries := prepared(t)
	all := published(t, r, binaries)
	formula := filepath.Join(r["OUT"], "etcd-wrapper.rb")
	out, err := exec.Command(ruby, "-wc", formula).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "Syntax OK\n", string(out))
	for _, platform := range platforms {
		archive := "etcd-wrapper_v1.2.3_" + platform + ".tar.gz"
		files, _ := unpacked(t, all[archive])
		system, processor, _ := strings.Cut(platform, "_")
		out, err := exec.Command(ruby, "-we", brewScript, formula, system, processor).CombinedOutput()
		require.NoError(t, err, "%s", out)
		lines := strings.Fields(string(out))
		assert.Equal(t, []string{"1.2.3", "https://example.org/team/etcd-wrapper/releases/download/v1.2.3/" + archive, sum([]byte(all[archive]))}, lines[:3])
		assert.Len(t, lines[3:], 6)
		for _, file := range lines[3:] {
			assert.Contains(t, files, file, platform)
		}
	}
	for _, once := range []string{"on_macos do", "on_linux do"} {
		assert.Equal(t, 1, strings.Count(all["etcd-wrapper.rb"], once), "brew audit rejects a second %s block", once)
	}
}

func TestReleaseProvenanceNamesTheCommitAndEachFile(t *testing.T) {
	r, binaries := prepared(t)
	all := published(t, r, binaries)
	var statement intoto.Statement
	require.NoError(t, protojson.Unmarshal([]byte(all["provenance.intoto.json"]), &statement))
	require.NoError(t, statement.Validate())
	subjects := map[string]string{}
	for _, subject := range statement.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	want := map[string]string{"registry.example.org/etcd-wrapper:v1.2.3": strings.Repeat("ab", 32)}
	for name, content := range all {
		if name != "SHA256SUMS" && name != "provenance.intoto.json" {
			want[name] = sum([]byte(content))
		}
	}
	assert.Equal(t, want, subjects)
	text, err := protojson.Marshal(statement.Predicate)
	require.NoError(t, err)
	var predicate slsa.Provenance
	require.NoError(t, protojson.Unmarshal(text, &predicate))
	require.NoError(t, predicate.Validate())
	source := predicate.BuildDefinition.ResolvedDependencies[0]
	assert.Equal(t, "git+https://example.org/team/etcd-wrapper@refs/tags/v1.2.3", source.Uri)
	assert.Equal(t, r["REVISION"], source.Digest["gitCommit"])
}

func TestReleaseChecksumsAndSignature(t *testing.T) {
	r, binaries := prepared(t)
	r["KEY"] = filepath.Join(t.TempDir(), "key")
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", r["KEY"]).CombinedOutput()
	require.NoError(t, err, "%s", out)
	all := published(t, r, binaries)

	in := func(stdin string, name string, args ...string) (string, error) {
		command := exec.Command(name, args...)
		command.Dir, command.Stdin = r["OUT"], strings.NewReader(stdin)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	checked, err := in("", "sha256sum", "--check", "--strict", "SHA256SUMS")
	require.NoError(t, err, checked)
	assert.Equal(t, len(all)-2, strings.Count(checked, ": OK"), "all files except SHA256SUMS and its signature must have a checksum")

	public, err := os.ReadFile(r["KEY"] + ".pub")
	require.NoError(t, err)
	signers := filepath.Join(t.TempDir(), "signers")
	require.NoError(t, os.WriteFile(signers, append([]byte("releases "), public...), 0o600))
	verify := []string{"-Y", "verify", "-f", signers, "-I", "releases", "-n", "file", "-s", "SHA256SUMS.sig"}
	verified, err := in(all["SHA256SUMS"], "ssh-keygen", verify...)
	require.NoError(t, err, verified)
	_, err = in(strings.Replace(all["SHA256SUMS"], "a", "b", 1), "ssh-keygen", verify...)
	require.Error(t, err, "the signature must not match changed checksums")

	again := published(t, r, binaries)
	assert.Equal(t, all, again)
}

func TestReleaseRejectsAChartWithoutItsVersions(t *testing.T) {
	r, binaries := prepared(t)
	moved := t.TempDir()
	for _, folder := range []string{"deploy/chart", "deploy/release", "deploy/systemd"} {
		require.NoError(t, os.CopyFS(filepath.Join(moved, folder), os.DirFS("../../"+folder)))
	}
	for _, file := range []string{"LICENSE", "deploy/kubectl-etcd", "deploy/chart/Chart.yaml"} {
		content, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		content = bytes.ReplaceAll(content, []byte("appVersion: 0.1.0"), nil)
		require.NoError(t, os.WriteFile(filepath.Join(moved, file), content, 0o600))
	}
	require.ErrorContains(t, r.write(moved, binaries), `there is not exactly one line like "appVersion: .*"`)
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
