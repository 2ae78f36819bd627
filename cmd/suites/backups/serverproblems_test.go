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

// memberWithData returns a member whose recovery is disabled. It has already run without a store, so it starts even if
// the store is unreachable.
func (s *service) memberWithData(t *testing.T) *member {
	t.Helper()
	m := s.member(t, "bucket", "--recover=never")
	all := m.Flags
	m.Flags = m.Flags[:2] // only the flags for the configuration, without --backup-store
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
		awaitBackupStatus(run, "backups start once the bucket exists", recovered)

		for status, words := range map[int]string{
			http.StatusServiceUnavailable: "store unavailable", http.StatusForbidden: "permission denied",
		} {
			service.proxy.Inject(storetest.Faults{Status: status})
			m.write("rejected", words)
			m.requireServingWithProblem(run, words)
			service.proxy.Inject(storetest.Faults{})
			awaitBackupStatus(run, "backups continue after "+words, recovered)
		}
		run.Shutdown()
		require.Len(t, m.requireSound(t), 1, "the chain has no gap")
	})
}

func TestServers_emptyVolumeWaits(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		m := service.member(t, "bucket")
		run := m.Start()
		run.AwaitLive()
		harness.Eventually(t, "the status shows that the member is waiting because the bucket does not exist", func() bool {
			out, _, _ := m.Begin("status", "-v").Wait()
			return strings.Contains(harness.OneLine(out), "bucket not found")
		})
		service.make(t, "bucket")
		run.AwaitReady()
		run.AwaitStored(m.write("key", "after the bucket was created"))
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
	last := m.write("key", "just before the stop")
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
	writeCredentials := func(secret string) {
		content := "[default]\naws_access_key_id = tester\naws_secret_access_key = " + secret + "\n"
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	writeCredentials("wrong")
	run := m.StartReady()
	m.requireServingWithProblem(run, "permission denied")
	writeCredentials("test-secret")
	awaitBackupStatus(run, "backups continue with the new credentials", recovered)
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
	awaitBackupStatus(again, "backups continue with the right key", recovered)
	again.Shutdown()
	require.Len(t, m.requireSound(t), 1)
}

func TestServers_backupsOfAnotherCluster(t *testing.T) {
	onEachCloud(t, func(t *testing.T, c cloud) {
		service := c.start(t)
		service.make(t, "bucket")
		first := service.member(t, "bucket")
		run := first.StartReady()
		first.write("owner", "first cluster")
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
