package release

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var once sync.Once

// builtImage returns the image that `make image` writes to the checkout, and the manifest of its layout.
func builtImage(t *testing.T) (v1.ImageIndex, *v1.IndexManifest) {
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

func imagesOf(t *testing.T, image v1.ImageIndex) map[string]v1.Image {
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

func TestImageHasTwoPlatforms(t *testing.T) {
	image, parts := builtImage(t)
	require.NoError(t, validate.Index(image))
	found := imagesOf(t, image)
	require.Len(t, found, 2)
	require.Contains(t, found, "linux/amd64")
	require.Contains(t, found, "linux/arm64")
	assert.Len(t, bills(parts), 2)
	assert.Equal(t, map[string]string{
		"org.opencontainers.image.ref.name": "latest", "io.containerd.image.name": "docker.io/library/etcd-wrapper:latest",
	}, parts.Manifests[0].Annotations)
}

func TestImageFileHasOneNamedImage(t *testing.T) {
	image, _ := builtImage(t)
	file, err := os.Open(filepath.Join(checkout(t), "bin/image.tar"))
	require.NoError(t, err)
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		require.NoError(t, err, "image.tar must contain index.json")
		if header.Name != "index.json" {
			continue
		}
		index, err := v1.ParseIndexManifest(r)
		require.NoError(t, err)
		require.Len(t, index.Manifests, 1, "programs that load the file accept only one image")
		digest, err := image.Digest()
		require.NoError(t, err)
		assert.Equal(t, digest, index.Manifests[0].Digest)
		assert.Equal(t, "docker.io/library/etcd-wrapper:latest", index.Manifests[0].Annotations["io.containerd.image.name"])
		return
	}
}

const (
	roots = "etc/ssl/certs/ca-certificates.crt"
	user  = 65532
)

func TestImageHasOnlyProgramCertificatesAndHome(t *testing.T) {
	image, _ := builtImage(t)
	for platform, one := range imagesOf(t, image) {
		found := map[string]string{}
		walk(t, one, func(header *tar.Header, content []byte) {
			assert.True(t, header.ModTime.Unix() == 0, "%s must not have a modification time", header.Name)
			owner := "root"
			if header.Uid == user && header.Gid == user {
				owner = "nonroot"
			}
			found[header.Name] = header.FileInfo().Mode().String() + " " + owner
			if header.Name == roots {
				pool := x509.NewCertPool()
				require.True(t, pool.AppendCertsFromPEM(content))
				assert.Greater(t, bytes.Count(content, []byte("BEGIN CERTIFICATE")), 100)
			}
		})
		assert.Equal(t, map[string]string{
			"etc": "drwxr-xr-x root", "etc/ssl": "drwxr-xr-x root", "etc/ssl/certs": "drwxr-xr-x root",
			roots: "-rw-r--r-- root", "home": "drwxr-xr-x root", "home/nonroot": "drwx------ nonroot",
			"etcd-wrapper": "-rwxr-xr-x root", "LICENSE": "-rw-r--r-- root", "NOTICES": "-rw-r--r-- root",
		}, found, platform)
	}
}

func walk(t *testing.T, image v1.Image, visit func(header *tar.Header, content []byte)) {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		visit(header, content)
	}
}

func TestImageConfiguration(t *testing.T) {
	image, _ := builtImage(t)
	for platform, one := range imagesOf(t, image) {
		file, err := one.ConfigFile()
		require.NoError(t, err)
		assert.Equal(t, platform, file.Platform().String())
		assert.Equal(t, "65532:65532", file.Config.User)
		assert.Equal(t, []string{"/etcd-wrapper"}, file.Config.Entrypoint)
		assert.Equal(t, []string{"HOME=/home/nonroot"}, file.Config.Env)
		labels := file.Config.Labels
		assert.Equal(t, "v0.0.0-test", labels["org.opencontainers.image.version"])
		assert.Len(t, labels["org.opencontainers.image.revision"], 40, "the revision must be a commit ID")
		assert.Equal(t, file.Created.Format("2006-01-02T15:04:05Z"), labels["org.opencontainers.image.created"])
		assert.Greater(t, file.Created.Year(), 2000)
	}
}

func TestImageRunsWithoutPrivileges(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: only root can run chroot")
	}
	image, _ := builtImage(t)
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // user 65532 must be able to enter the directory
	}
	walk(t, imagesOf(t, image)["linux/"+runtime.GOARCH], func(header *tar.Header, content []byte) {
		path := filepath.Join(root, header.Name)
		if header.Typeflag == tar.TypeDir {
			require.NoError(t, os.Mkdir(path, header.FileInfo().Mode()))
		} else {
			require.NoError(t, os.WriteFile(path, content, header.FileInfo().Mode()))
		}
		require.NoError(t, os.Chown(path, header.Uid, header.Gid))
	})
	command := exec.Command("/etcd-wrapper", "version")
	command.Dir, command.Env = "/home/nonroot", []string{"HOME=/home/nonroot"}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "etcd-wrapper v0.0.0-test\n")
}

func TestImageHasTheSameBytesFromAnotherCheckout(t *testing.T) {
	root, copied := checkout(t), filepath.Join(t.TempDir(), "elsewhere")
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // the file was deleted, but the deletion has not been committed
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(copied, name)), 0o755))
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(copied, name), content, info.Mode()&0o700))
	}
	// The copy is not a git repository, but the image labels must contain the commit.
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

func TestImageHasBillsOfMaterials(t *testing.T) {
	image, parts := builtImage(t)
	all, err := layout.ImageIndexFromPath(filepath.Join(checkout(t), "bin/image"))
	require.NoError(t, err)
	for _, part := range bills(parts) {
		bill, err := all.Image(part.Digest)
		require.NoError(t, err)
		manifest, err := bill.Manifest()
		require.NoError(t, err)
		require.NotNil(t, manifest.Subject, "the bill of materials must name its image")
		layers, err := bill.Layers()
		require.NoError(t, err)
		content, err := layers[0].Uncompressed()
		require.NoError(t, err)
		document := cyclonedx.NewBOM()
		require.NoError(t, cyclonedx.NewBOMDecoder(content, cyclonedx.BOMFileFormatJSON).Decode(document))
		assert.Equal(t, "v0.0.0-test", document.Metadata.Component.Version)
		notices := contentOf(t, image, manifest.Subject.Digest, "NOTICES")
		for _, component := range *document.Components {
			_, text, found := strings.Cut(notices, "==== "+component.Name+" "+component.Version+"\n")
			text, _, _ = strings.Cut(text, "\n==== ")
			assert.True(t, found && len(text) > 200, "NOTICES has no license for %s %s", component.Name, component.Version)
		}
		versions := map[string]string{}
		for _, component := range *document.Components {
			versions[component.Name] = component.Version
		}
		assert.Equal(t, "v3.6.16", versions["go.etcd.io/etcd/server/v3"])
		assert.Equal(t, runtime.Version(), versions["std"])
	}
}

// contentOf returns the content of a file in the image with the given digest, which is the image for one platform.
func contentOf(t *testing.T, index v1.ImageIndex, digest v1.Hash, name string) (text string) {
	t.Helper()
	image, err := index.Image(digest)
	require.NoError(t, err)
	walk(t, image, func(header *tar.Header, content []byte) {
		if header.Name == name {
			text = string(content)
		}
	})
	return text
}

// billType is the artifact type of a software bill of materials.
const billType = "application/vnd.cyclonedx+json"

// bills returns the software bills of materials in an image layout.
func bills(parts *v1.IndexManifest) (found []v1.Descriptor) {
	for _, part := range parts.Manifests {
		if part.ArtifactType == billType {
			found = append(found, part)
		}
	}
	return found
}

func TestImagePushIncludesTheBills(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	// If the host is localhost, tools assume that the registry does not use TLS.
	target := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1) + "/team/etcd-wrapper:v0.0.0-test"
	image, _ := builtImage(t)
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
	for platform, one := range imagesOf(t, pulled) {
		digest, err := one.Digest()
		require.NoError(t, err)
		bills, err := remote.Referrers(tag.Digest(digest.String()))
		require.NoError(t, err)
		list, err := bills.IndexManifest()
		require.NoError(t, err)
		require.Len(t, list.Manifests, 1, platform)
		bill, err := remote.Get(tag.Digest(list.Manifests[0].Digest.String())) // the registry uses the media type of the configuration as the artifact type
		require.NoError(t, err)
		assert.Contains(t, string(bill.Manifest), `"artifactType":"`+billType+`"`)
	}
}

// The build must stop if a command inside $(…) fails. Without inherit_errexit, Bash would continue, and the image
// would contain no notices.
func TestImageBuild_stopsIfACommandFails(t *testing.T) {
	out, err := exec.Command("bash", "-c", `source ./common.sh; add() { false; echo added; }; images+=("$(add)"); echo "${images[@]}"`).CombinedOutput()
	require.Error(t, err)
	assert.NotContains(t, string(out), "added")
}

func TestImageRejectsABinaryThatNeedsACLibrary(t *testing.T) {
	command := exec.Command("./image.sh", dynamic(t))
	command.Env = append(os.Environ(), "OUT="+filepath.Join(t.TempDir(), "image"), "TAG=latest", "PUSH=", "VERSION=v0", "REVISION=unknown", "CREATED=0")
	out, err := command.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "it would need a C library")
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
