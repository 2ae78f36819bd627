package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheImageHoldsTheProgramCertificatesAndAHomeAndNothingElse(t *testing.T) {
	image, _ := made(t)
	for platform, one := range platforms(t, image) {
		found := map[string]string{}
		walk(t, one, func(header *tar.Header, content []byte) {
			assert.True(t, header.ModTime.Unix() == 0, "%s has a time", header.Name)
			owner := "root"
			if header.Uid == user && header.Gid == user {
				owner = "nonroot"
			}
			found[header.Name] = header.FileInfo().Mode().String() + " " + owner
			if header.Name == certificates {
				pool := x509.NewCertPool()
				require.True(t, pool.AppendCertsFromPEM(content))
				assert.Greater(t, bytes.Count(content, []byte("BEGIN CERTIFICATE")), 100)
			}
		})
		assert.Equal(t, map[string]string{
			"etc": "drwxr-xr-x root", "etc/ssl": "drwxr-xr-x root", "etc/ssl/certs": "drwxr-xr-x root",
			certificates: "-rw-r--r-- root", "home": "drwxr-xr-x root", "home/nonroot": "drwx------ nonroot",
			program: "-rwxr-xr-x root",
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

func TestTheImageSaysWhoItRunsAsAndWhatItIs(t *testing.T) {
	image, _ := made(t)
	for platform, one := range platforms(t, image) {
		file, err := one.ConfigFile()
		require.NoError(t, err)
		assert.Equal(t, platform, file.Platform().String())
		assert.Equal(t, "65532:65532", file.Config.User)
		assert.Equal(t, []string{"/etcd-wrapper"}, file.Config.Entrypoint)
		assert.Equal(t, []string{"HOME=/home/nonroot"}, file.Config.Env)
		labels := file.Config.Labels
		assert.Equal(t, "v0.0.0-test", labels["org.opencontainers.image.version"])
		assert.Len(t, labels["org.opencontainers.image.revision"], 40, "a commit")
		assert.Equal(t, file.Created.Format("2006-01-02T15:04:05Z"), labels["org.opencontainers.image.created"])
		assert.Greater(t, file.Created.Year(), 2000)
	}
}

func TestTheProgramRunsAsAnybodyInNothingButTheImage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: only root may change the root directory")
	}
	image, _ := made(t)
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // user 65532 has to get there
	}
	walk(t, platforms(t, image)["linux/"+runtime.GOARCH], func(header *tar.Header, content []byte) {
		path := filepath.Join(root, header.Name)
		if header.Typeflag == tar.TypeDir {
			require.NoError(t, os.Mkdir(path, header.FileInfo().Mode()))
		} else {
			require.NoError(t, os.WriteFile(path, content, header.FileInfo().Mode()))
		}
		require.NoError(t, os.Chown(path, header.Uid, header.Gid))
	})
	command := exec.Command("/"+program, "version")
	command.Dir, command.Env = "/"+home, []string{"HOME=/" + home}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "etcd-wrapper v0.0.0-test\n")
}
