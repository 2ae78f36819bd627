package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	_ "embed"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

// platforms are those of a release, as binaries.
var platforms = []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"}

// nothing is the source of a program that only says how it was called, and what is built of it.
var nothing string

func TestMain(m *testing.M) {
	var err error
	if nothing, err = os.MkdirTemp("", "nothing"); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(nothing)
	os.Exit(status)
}

// prepared is a release of that program for each platform, and of an image that is none.
func prepared(t *testing.T) (r release, binaries []string) {
	t.Helper()
	source := map[string]string{"go.mod": "module nothing\n\ngo 1.26.0\n", "main.go": "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(os.Args[1:], os.Environ()) }\n"}
	for name, text := range source {
		require.NoError(t, os.WriteFile(filepath.Join(nothing, name), []byte(text), 0o600))
	}
	for _, platform := range platforms {
		binaries = append(binaries, build(t, nothing, platform, "0"))
	}
	dir := t.TempDir()
	layout := filepath.Join(dir, "image")
	require.NoError(t, os.Mkdir(layout, 0o755))
	index := `{"manifests": [{"digest": "sha256:` + strings.Repeat("ab", 32) + `"}]}`
	require.NoError(t, os.WriteFile(filepath.Join(layout, "index.json"), []byte(index), 0o600))
	require.NoError(t, os.WriteFile(layout+".tar", []byte("an image"), 0o600))
	return release{
		version: "v1.2.3", revision: strings.Repeat("c0", 20), created: time.Unix(1_750_000_000, 0).UTC(),
		repository: "https://example.org/team/etcd-wrapper", image: "registry.example.org/etcd-wrapper",
		checkout: "../..", layout: layout, out: filepath.Join(dir, "dist"),
	}, binaries
}

func build(t *testing.T, dir, platform, cgo string) (binary string) {
	t.Helper()
	system, processor, _ := strings.Cut(platform, "_")
	binary = filepath.Join(dir, platform, program)
	if _, err := os.Stat(binary); err == nil {
		return binary // of an earlier test
	}
	command := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	command.Dir, command.Env = dir, append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS="+system, "GOARCH="+processor)
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// made is what a release leaves behind, by name.
func made(t *testing.T, r release, binaries []string) map[string]string {
	t.Helper()
	require.NoError(t, r.write(binaries))
	files, err := os.ReadDir(r.out)
	require.NoError(t, err)
	found := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r.out, file.Name()))
		require.NoError(t, err)
		found[file.Name()] = string(content)
	}
	return found
}

func TestAReleaseHoldsAllThatIsPublishedAndTheSameEachTime(t *testing.T) {
	r, binaries := prepared(t)
	first := made(t, r, binaries)
	var names []string
	for name := range first {
		names = append(names, name)
	}
	want := []string{"etcd-wrapper_v1.2.3_image.tar", "etcd-1.2.3.tgz", "etcd-wrapper.rb", "etcd.yaml", "provenance.intoto.json", "SHA256SUMS"}
	for _, platform := range platforms {
		want = append(want, "etcd-wrapper_v1.2.3_"+platform+".tar.gz", "etcd-wrapper_v1.2.3_"+platform+".cdx.json")
	}
	assert.ElementsMatch(t, want, names)
	assert.Equal(t, first, made(t, r, binaries))
}

// unpacked is what an archive holds, and the headers of it.
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

func TestAnArchiveHoldsTheBinaryAsItWasBuiltAndNothingOfTheMachine(t *testing.T) {
	r, binaries := prepared(t)
	all := made(t, r, binaries)
	for i, platform := range platforms {
		files, headers := unpacked(t, all["etcd-wrapper_v1.2.3_"+platform+".tar.gz"])
		want, err := os.ReadFile(binaries[i])
		require.NoError(t, err)
		assert.True(t, string(want) == files[program], platform)
		assert.Contains(t, files["LICENSE"], "Apache License")
		assert.Equal(t, "[man] [HOME=$HOME]\n", files["etcd-wrapper.1"])
		assert.Equal(t, "[completion zsh] [HOME=$HOME]\n", files["completion/_etcd-wrapper"])
		for _, header := range headers {
			assert.Equal(t, r.created, header.ModTime.UTC())
			assert.Zero(t, header.Uid+header.Gid)
			assert.Empty(t, header.Uname+header.Gname)
		}
		assert.EqualValues(t, 0o755, headers[0].Mode)
		parts := cyclonedx.NewBOM()
		require.NoError(t, cyclonedx.NewBOMDecoder(strings.NewReader(all["etcd-wrapper_v1.2.3_"+platform+".cdx.json"]), cyclonedx.BOMFileFormatJSON).Decode(parts))
		assert.Equal(t, sum(want), (*parts.Metadata.Component.Hashes)[0].Value)
		assert.Equal(t, "v1.2.3", parts.Metadata.Component.Version)
	}
}

func TestABinaryThatNeedsACLibraryIsRefused(t *testing.T) {
	r, _ := prepared(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(nothing)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "linux_amd64")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c.go"), []byte("package main\n\nimport \"C\"\n"), 0o600))
	require.ErrorContains(t, r.write([]string{build(t, dir, "linux_amd64", "1")}), "is built with CGO_ENABLED=1")
}

// tool builds a program from the module that has its version, as the tests of the chart build helm.
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

func TestThePackedChartIsTheOneInTheSourceWithTheImageOfTheVersion(t *testing.T) {
	r, binaries := prepared(t)
	made(t, r, binaries)
	packed := filepath.Join(r.out, "etcd-1.2.3.tgz")
	assert.Equal(t, helm(t, "template", "etcd-main", "../chart", "--set=image.repository=registry.example.org/etcd-wrapper,image.tag=v1.2.3"),
		helm(t, "template", "etcd-main", packed))
	var chart struct{ Name, Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal([]byte(helm(t, "show", "chart", packed)), &chart))
	assert.Equal(t, "etcd 1.2.3 v1.2.3", chart.Name+" "+chart.Version+" "+chart.AppVersion)
}

func TestTheFormulaAndTheManifestNameEachArchiveWithItsSum(t *testing.T) {
	r, binaries := prepared(t)
	all := made(t, r, binaries)
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

// What krew leaves in the path is the program of the archive, under the name of a plugin.
func TestKrewInstallsThePluginFromTheManifestAndTheArchive(t *testing.T) {
	r, binaries := prepared(t)
	made(t, r, binaries)
	home := t.TempDir()
	archive := "etcd-wrapper_v1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	install := exec.Command(tool(t, "krew", "sigs.k8s.io/krew/cmd/krew"), "install",
		"--manifest="+filepath.Join(r.out, "etcd.yaml"), "--archive="+filepath.Join(r.out, archive))
	install.Env = append(os.Environ(), "KREW_ROOT="+home, "KREW_NO_UPGRADE_CHECK=1")
	out, err := install.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "Installed plugin: etcd")
	said, err := exec.Command(filepath.Join(home, "bin", "kubectl-etcd"), "status").Output()
	require.NoError(t, err)
	assert.Contains(t, string(said), "[status]")
}

// brewing is what Homebrew's class of formulas does with one, as far as ours goes: it picks the archive of the platform, unpacks it, and
// lets install put the files of it into folders.
//
//go:embed testdata/brewing.rb
var brewing string

func TestTheFormulaInstallsTheFilesOfTheArchiveOnEachPlatform(t *testing.T) {
	ruby, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: there is no ruby")
	}
	r, binaries := prepared(t)
	all := made(t, r, binaries)
	formula := filepath.Join(r.out, "etcd-wrapper.rb")
	out, err := exec.Command(ruby, "-wc", formula).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "Syntax OK\n", string(out))
	for _, platform := range platforms {
		archive := "etcd-wrapper_v1.2.3_" + platform + ".tar.gz"
		files, _ := unpacked(t, all[archive])
		system, processor, _ := strings.Cut(platform, "_")
		out, err := exec.Command(ruby, "-we", brewing, formula, system, processor).CombinedOutput()
		require.NoError(t, err, "%s", out)
		lines := strings.Fields(string(out))
		assert.Equal(t, []string{"1.2.3", "https://example.org/team/etcd-wrapper/releases/download/v1.2.3/" + archive, sum([]byte(all[archive]))}, lines[:3])
		assert.Len(t, lines[3:], 5)
		for _, file := range lines[3:] {
			assert.Contains(t, files, file, platform)
		}
	}
	for _, once := range []string{"on_macos do", "on_linux do"} {
		assert.Equal(t, 1, strings.Count(all["etcd-wrapper.rb"], once), "brew audit refuses a second %s", once)
	}
}

func TestTheProvenanceNamesTheCommitAndEachFile(t *testing.T) {
	r, binaries := prepared(t)
	all := made(t, r, binaries)
	var statement intoto.Statement
	require.NoError(t, protojson.Unmarshal([]byte(all["provenance.intoto.json"]), &statement))
	require.NoError(t, statement.Validate())
	subjects := map[string]string{}
	for _, subject := range statement.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	want := map[string]string{"registry.example.org/etcd-wrapper:v1.2.3": strings.Repeat("ab", 32)}
	for name, content := range all {
		if name != sums && name != "provenance.intoto.json" {
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
	assert.Equal(t, r.revision, source.Digest["gitCommit"])
}

func TestChecksumsAndSignatureAreVerifiedByTheToolsThatEveryoneHas(t *testing.T) {
	r, binaries := prepared(t)
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	r.key = filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(r.key, pem.EncodeToMemory(block), 0o600))
	all := made(t, r, binaries)

	in := func(stdin string, name string, args ...string) (string, error) {
		command := exec.Command(name, args...)
		command.Dir, command.Stdin = r.out, strings.NewReader(stdin)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	out, err := in("", "sha256sum", "--check", "--strict", sums)
	require.NoError(t, err, out)
	assert.Equal(t, len(all)-2, strings.Count(out, ": OK"), "all but the checksums and their signature")

	public, err := ssh.NewPublicKey(private.Public())
	require.NoError(t, err)
	signers := filepath.Join(t.TempDir(), "signers")
	require.NoError(t, os.WriteFile(signers, append([]byte("releases "), ssh.MarshalAuthorizedKey(public)...), 0o600))
	verify := []string{"-Y", "verify", "-f", signers, "-I", "releases", "-n", "file", "-s", sums + ".sig"}
	out, err = in(all[sums], "ssh-keygen", verify...)
	require.NoError(t, err, out)
	_, err = in(strings.Replace(all[sums], "a", "b", 1), "ssh-keygen", verify...)
	require.Error(t, err, "other checksums are not what was signed")

	again := made(t, r, binaries)
	assert.Equal(t, all, again)
}

func TestAChartWhoseVersionsCannotBeReplacedIsNotPacked(t *testing.T) {
	r, binaries := prepared(t)
	moved := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(moved, "deploy/chart"), os.DirFS("../chart")))
	license, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(moved, "LICENSE"), license, 0o600))
	path := filepath.Join(moved, "deploy/chart/Chart.yaml")
	chart, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(chart, []byte("appVersion: 0.1.0"), nil), 0o600))
	r.checkout = moved
	require.ErrorContains(t, r.write(binaries), `there is not one place like "appVersion: .*"`)
}
