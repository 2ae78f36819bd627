package backups_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/cmd/suites/harness"
)

// memberWithData returns a member with recovery disabled that has already run without a store.
func (s *service) memberWithData(t *testing.T) *member {
	t.Helper()
	m := s.member(t, "bucket", "--recover=never")
	all := m.Flags
	m.Flags = m.Flags[:2] // keep only the configuration flags and use no store
	m.StartAndStop()
	m.Flags = all
	return m
}

func TestServers_outageIsReportedAndResolved(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		m := service.memberWithData(t)
		run := m.StartReady()
		m.requireServingWithProblem(run, "bucket not found")
		service.make(t, "bucket")
		awaitBackupStatus(run, "the bucket is found", recovered)

		for status, words := range map[int]string{
			http.StatusServiceUnavailable: "store unavailable", http.StatusForbidden: "permission denied",
		} {
			service.proxy.Inject(storetest.Faults{Status: status})
			m.write("refused", words)
			m.requireServingWithProblem(run, words)
			service.proxy.Inject(storetest.Faults{})
			awaitBackupStatus(run, "backups continue after "+words, recovered)
		}
		run.Shutdown()
		require.Len(t, m.requireSound(t), 1, "there is no gap after the failures")
	})
}

func TestServers_emptyVolumeWaits(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		m := service.member(t, "bucket")
		run := m.Start()
		run.AwaitLive()
		harness.Eventually(t, "the status names the store that the member waits for", func() bool {
			out, _, _ := m.Begin("status", "-v").Wait()
			return strings.Contains(harness.OneLine(out), "bucket not found")
		})
		service.make(t, "bucket")
		run.AwaitReady()
		run.AwaitStored(m.write("key", "after the wait"))
		run.Shutdown()
	})
}

func TestServers_slowUploadsWithinTheStopBudget(t *testing.T) {
	service := clouds["s3"].start(t)
	service.make(t, "bucket")
	m := service.member(t, "bucket", "--recover=never")
	run := m.StartReady()
	run.AwaitStored(m.write("key", "before"))
	service.proxy.Inject(storetest.Faults{Delay: 2 * time.Second})
	last := m.write("key", "just before the end")
	run.Shutdown()
	service.proxy.Inject(storetest.Faults{})
	assert.Equal(t, last, m.head(t))
	require.Len(t, m.requireSound(t), 1)
}

func TestServers_correctedCredentials(t *testing.T) {
	service := clouds["s3"].start(t)
	service.make(t, "bucket")
	m := service.memberWithData(t)
	m.Env = nil
	file := filepath.Join(m.Dir, ".aws", "credentials")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	have := func(secret string) {
		content := "[default]\naws_access_key_id = tester\naws_secret_access_key = " + secret + "\n"
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	have("wrong")
	run := m.StartReady()
	m.requireServingWithProblem(run, "permission denied")
	have("test-secret")
	awaitBackupStatus(run, "the new credentials are found", recovered)
	run.Shutdown()
	require.Len(t, m.requireSound(t), 1)
}

func TestServers_wrongAzureKey(t *testing.T) {
	service := clouds["azblob"].start(t)
	service.make(t, "bucket")
	m := service.memberWithData(t)
	m.Env = []string{"AZURE_STORAGE_KEY=YW5vdGhlcg=="}
	run := m.StartReady()
	m.requireServingWithProblem(run, "permission denied")
	run.Shutdown()
	m.Env = service.credentials
	again := m.StartReady()
	awaitBackupStatus(again, "the right key opens it", recovered)
	again.Shutdown()
	require.Len(t, m.requireSound(t), 1)
}

func TestServers_backupsOfAnotherCluster(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		service.make(t, "bucket")
		first := service.member(t, "bucket")
		run := first.StartReady()
		first.write("whose", "the first one's")
		owner := run.Status().Backup.Cluster
		require.NotEmpty(t, owner)
		run.Shutdown()
		before := first.objects(t)

		second := service.memberWithData(t)
		other := second.StartReady()
		second.requireServingWithProblem(other, "belongs to cluster "+owner)
		other.Shutdown()
		assert.Equal(t, before, second.objects(t), "the store is unchanged")
	})
}
