package backups_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/readiness/status"
)

// clouds are the stores that a server stands for, each made ready, with its URL. What the program needs beside that is in the
// environment, where each cloud's own tools look.
var clouds = map[string]func(t *testing.T) string{"s3": onS3, "gs": onGCS, "azblob": onAzure}

func onS3(t *testing.T) string {
	endpoint := servers.S3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", servers.S3Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", servers.S3Secret)
	client, err := minio.New(endpoint.Host, &minio.Options{Creds: credentials.NewStaticV4(servers.S3Access, servers.S3Secret, "")})
	require.NoError(t, err)
	require.NoError(t, client.MakeBucket(t.Context(), "bucket", minio.MakeBucketOptions{}))
	return "s3://bucket/main?path-style=true&region=us-east-1&endpoint=" + url.QueryEscape(endpoint.String())
}

func onGCS(t *testing.T) string {
	endpoint := servers.GCS(t)
	created, err := http.Post(endpoint.JoinPath("storage/v1/b").String()+"?project=test", "application/json", strings.NewReader(`{"name":"bucket"}`))
	require.NoError(t, err)
	require.NoError(t, created.Body.Close())
	require.Equal(t, http.StatusOK, created.StatusCode)
	return "gs://bucket/main?endpoint=" + url.QueryEscape(endpoint.String())
}

func onAzure(t *testing.T) string {
	endpoint := servers.Azure(t)
	t.Setenv("AZURE_STORAGE_KEY", servers.AzureKey)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, endpoint.JoinPath("container").String()+"?restype=container", nil)
	require.NoError(t, err)
	sign(t, request)
	created, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, created.Body.Close())
	require.Equal(t, http.StatusCreated, created.StatusCode)
	return "azblob://container/main?account=" + servers.AzureAccount + "&endpoint=" + url.QueryEscape(endpoint.String())
}

// sign is Azure's Shared Key for a request without a body that creates a container.
func sign(t *testing.T, request *http.Request) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(servers.AzureKey)
	require.NoError(t, err)
	request.Header.Set("x-ms-date", time.Now().UTC().Format(http.TimeFormat))
	request.Header.Set("x-ms-version", "2023-11-03")
	digest := hmac.New(sha256.New, key)
	fmt.Fprintf(digest, "PUT%sx-ms-date:%s\nx-ms-version:%s\n/%s%s\nrestype:container", strings.Repeat("\n", 12),
		request.Header.Get("x-ms-date"), request.Header.Get("x-ms-version"), servers.AzureAccount, request.URL.Path)
	request.Header.Set("Authorization", "SharedKey "+servers.AzureAccount+":"+base64.StdEncoding.EncodeToString(digest.Sum(nil)))
}

// From the first write to a stock etcd on what was exported, with each of the clouds' servers.
func TestServersKeepWhatWasAcknowledgedAndGiveItBack(t *testing.T) {
	for name, made := range clouds {
		t.Run(name, func(t *testing.T) {
			store := "--backup-store=" + made(t)
			m := &member{Pod: harness.NewStandalonePod(t, nil)}
			m.Flags = append(m.Flags, store, "--backup-interval=200ms")
			run := m.StartReady()
			m.live()
			then := m.write("between", "1")
			at := now(m.Pod)
			awaitStored(run, then)
			awaitTold(run, "a full was restored to test it", func(b status.Backup) bool { return b.LastVerified != nil && b.LastVerified.Passed })
			m.write("last", "just before the end")
			latest := now(m.Pod)
			run.StopCleanly()

			for to, want := range map[string]state{"latest": latest, fmt.Sprint("revision:", then): at} {
				file := filepath.Join(t.TempDir(), "snapshot")
				_, log, status := m.Begin("backup", "export", store, "--to="+to, file).Wait()
				require.Zero(t, status, log)
				assert.Equal(t, want, ofSnapshot(t, file), to)
				again := restored(t, file)
				second := again.StartReady()
				assert.Equal(t, want, now(again), "an etcd on it has the same keys")
				second.StopCleanly()
			}
		})
	}
}
