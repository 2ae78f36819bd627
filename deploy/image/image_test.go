package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var once sync.Once

// made is what `make image` left in the checkout.
func made(t *testing.T) (v1.ImageIndex, *v1.IndexManifest) {
	t.Helper()
	once.Do(func() { makeImage(t, checkout(t)) })
	all, err := layout.ImageIndexFromPath(filepath.Join(checkout(t), "bin/image"))
	require.NoError(t, err)
	parts, err := all.IndexManifest()
	require.NoError(t, err)
	image, err := all.ImageIndex(parts.Manifests[0].Digest)
	require.NoError(t, err)
	return image, parts
}

func checkout(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	return root
}

func makeImage(t *testing.T, root string, args ...string) (folder string) {
	t.Helper()
	command := exec.Command("make", append([]string{"image", "VERSION=v0.0.0-test"}, args...)...)
	command.Dir = root
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(root, "bin/image")
}

func platforms(t *testing.T, image v1.ImageIndex) map[string]v1.Image {
	t.Helper()
	manifest, err := image.IndexManifest()
	require.NoError(t, err)
	found := map[string]v1.Image{}
	for _, part := range manifest.Manifests {
		one, err := image.Image(part.Digest)
		require.NoError(t, err)
		found[part.Platform.String()] = one
	}
	return found
}

func TestTheImageIsForTwoPlatformsAndAllOfItIsThere(t *testing.T) {
	image, parts := made(t)
	require.NoError(t, validate.Index(image))
	found := platforms(t, image)
	require.Len(t, found, 2)
	require.Contains(t, found, "linux/amd64")
	require.Contains(t, found, "linux/arm64")
	assert.Len(t, parts.Manifests, 3, "the image and a bill of materials for each platform")
	assert.Equal(t, names("latest"), parts.Manifests[0].Annotations)
}

func TestTheFileHoldsOneImageUnderTheNameThatTheManifestsHave(t *testing.T) {
	image, _ := made(t)
	file, err := os.Open(filepath.Join(checkout(t), "bin/image.tar"))
	require.NoError(t, err)
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		require.NoError(t, err, "there is no index.json")
		if header.Name != "index.json" {
			continue
		}
		index, err := v1.ParseIndexManifest(r)
		require.NoError(t, err)
		require.Len(t, index.Manifests, 1, "a program that loads it would ask which is meant")
		digest, err := image.Digest()
		require.NoError(t, err)
		assert.Equal(t, digest, index.Manifests[0].Digest)
		assert.Equal(t, "docker.io/library/etcd-wrapper:latest", index.Manifests[0].Annotations["io.containerd.image.name"])
		return
	}
}

func TestAnotherCheckoutGivesTheSameBytes(t *testing.T) {
	root, copied := checkout(t), filepath.Join(t.TempDir(), "elsewhere")
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed yet
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(copied, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(copied, name), content, 0o600))
	}
	// What the image says of the commit comes from git, which the copy has not.
	t.Setenv("GIT_DIR", gitDir(t, root))
	first, second := makeImage(t, root), makeImage(t, copied)
	want, err := os.ReadFile(first + ".tar")
	require.NoError(t, err)
	got, err := os.ReadFile(second + ".tar")
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%s.tar and %s.tar differ", first, second)
}

func gitDir(t *testing.T, root string) string {
	t.Helper()
	command := exec.Command("git", "rev-parse", "--absolute-git-dir")
	command.Dir = root
	out, err := command.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

func TestTheBillOfMaterialsNamesWhatIsLinked(t *testing.T) {
	_, parts := made(t)
	all, err := layout.ImageIndexFromPath(filepath.Join(checkout(t), "bin/image"))
	require.NoError(t, err)
	for _, part := range parts.Manifests[1:] {
		assert.Equal(t, string(bomType), part.ArtifactType)
		bill, err := all.Image(part.Digest)
		require.NoError(t, err)
		manifest, err := bill.Manifest()
		require.NoError(t, err)
		require.NotNil(t, manifest.Subject, "it says of what it is the bill")
		layers, err := bill.Layers()
		require.NoError(t, err)
		content, err := layers[0].Uncompressed()
		require.NoError(t, err)
		document := cyclonedx.NewBOM()
		require.NoError(t, cyclonedx.NewBOMDecoder(content, cyclonedx.BOMFileFormatJSON).Decode(document))
		var names []string
		for _, component := range *document.Components {
			names = append(names, component.PackageURL)
		}
		assert.Contains(t, names, "pkg:golang/go.etcd.io/etcd/server/v3@v3.6.16")
		assert.Contains(t, names, "pkg:golang/std@"+strings.TrimPrefix(runtime.Version(), "go"))
	}
}

func TestWhatIsPushedCanBePulledWithItsBills(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	target := strings.TrimPrefix(server.URL, "http://") + "/team/etcd-wrapper:v0.0.0-test"
	image, _ := made(t)
	makeImage(t, checkout(t), "PUSH="+target)
	tag, err := name.NewTag(target)
	require.NoError(t, err)
	pulled, err := remote.Index(tag)
	require.NoError(t, err)
	want, err := image.Digest()
	require.NoError(t, err)
	got, err := pulled.Digest()
	require.NoError(t, err)
	require.Equal(t, want, got)
	for platform, one := range platforms(t, pulled) {
		digest, err := one.Digest()
		require.NoError(t, err)
		bills, err := remote.Referrers(tag.Digest(digest.String()))
		require.NoError(t, err)
		list, err := bills.IndexManifest()
		require.NoError(t, err)
		require.Len(t, list.Manifests, 1, platform)
		assert.Equal(t, string(bomType), list.Manifests[0].ArtifactType)
	}
}

func TestABinaryThatNeedsACLibraryIsRefused(t *testing.T) {
	_, err := assemble(release{}, []string{dynamic(t)})
	require.ErrorContains(t, err, "there is no C library in the image")
}

func dynamic(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/go.mod", []byte("module dynamic\n\ngo 1.26.0\n"), 0o600))
	require.NoError(t, os.WriteFile(dir+"/main.go", []byte("package main\n\nfunc main() {}\n"), 0o600))
	command := exec.Command("go", "build", "-o", dir+"/dynamic", ".")
	command.Dir, command.Env = dir, append(os.Environ(), "CGO_ENABLED=1")
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir + "/dynamic"
}
