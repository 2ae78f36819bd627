package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
)

// Another process has restored this cluster from its backups while it lives, and writes all the time.
func TestAClusterThatWasRestoredElsewhereNoticesWhileItRuns(t *testing.T) {
	s := newStand(t)
	s.tune = append(s.tune, func(s *Writer) { s.pace.vet = 200 * time.Millisecond })
	s.run()
	s.awaitStored(s.put("a", "1"))
	require.NoError(t, archive.New(s.store, keys).BeginGeneration(t.Context(),
		archive.Generation{Number: 2, Cluster: clusterID, Parent: 1, ParentRevision: 2, Created: time.Now()}))
	require.Eventually(t, func() bool {
		s.put("a", fmt.Sprint(time.Now())) // etcd serves all the same
		return s.Facts().Trouble != nil
	}, patience, poll)
	s.requireUntouched("generation 1", "generation 2", clusterID)
}
