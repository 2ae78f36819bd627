package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"etcd-wrapper/testdata/deploy/cluster"
)

// The way that docs/deploy.md describes, while a client writes.
func TestOneMemberGrowsToThreeByHand(t *testing.T) {
	w := newWorldWithBucket(t)
	w.apply("deploy/standalone")
	w.awaitReady(1)
	w.greet()
	writes := w.startWriter()
	for size := 2; size <= 3; size++ {
		w.addLearner(fmt.Sprintf("etcd-main-%d", size-1))
		w.apply(w.joining(size))
		w.awaitReady(size)
	}
	w.apply("deploy/standalone-ha") // whose initial cluster is new again: members with a log do not look at it
	w.awaitReady(3)
	w.check(writes)
	assert.True(t, w.greeted())
	assert.Len(t, w.voters(), 3)
}

// joining is standalone-ha with as many members, of which the last is to join those that there are.
func (w *world) joining(size int) (folder string) {
	w.t.Helper()
	folder = w.overlay("standalone-ha", fmt.Sprintf(`replicas: [{name: etcd-main, count: %d}]
configMapGenerator:
- {name: etcd-main-config, behavior: replace, files: [etcd.conf.yaml]}
`, size))
	content, err := os.ReadFile(filepath.Join(cluster.Checkout(), "deploy/standalone-ha/etcd.conf.yaml"))
	require.NoError(w.t, err)
	text := strings.Replace(string(content), "initial-cluster-state: new", "initial-cluster-state: existing", 1)
	var kept []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  etcd-main-2") && size < 3 {
			continue
		}
		if strings.HasPrefix(line, "initial-cluster: ") {
			line = "initial-cluster: ''\n" // it is completed from the members' URLs
		}
		kept = append(kept, line)
	}
	require.NoError(w.t, os.WriteFile(filepath.Join(folder, "etcd.conf.yaml"), []byte(strings.Join(kept, "")), 0o600))
	return folder
}

// addLearner lets a member in, which asks to be made a voter by itself when it has caught up.
func (w *world) addLearner(name string) {
	w.t.Helper()
	cluster.Eventually(w.t, name+" is added", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := w.etcd().MemberAddAsLearner(ctx, []string{"http://" + name + ".etcd-main-peer:2380"})
		return err
	})
}

// A member without its data is not let in under its old identity. The others serve on, and docs/runbook.md replaces it.
func TestAMemberWhoseVolumeIsLostIsReplacedByHand(t *testing.T) {
	w := newWorldWithBucket(t)
	w.apply("deploy/standalone-ha")
	w.awaitReady(3)
	writes := w.startWriter()
	w.loseVolume("etcd-main-1")
	cluster.Eventually(t, "it says why it does not start", func() error {
		return contains(w.log("etcd-main-1"), "has already been bootstrapped")
	})

	members, err := w.etcd().MemberList(t.Context())
	require.NoError(t, err)
	for _, member := range members.Members {
		if member.Name == "etcd-main-1" {
			_, err := w.etcd().MemberRemove(t.Context(), member.ID)
			require.NoError(t, err)
		}
	}
	w.addLearner("etcd-main-1")
	w.apply(w.joining(3))
	w.awaitConfig("etcd-main-1")
	w.loseVolume("etcd-main-1") // between the removal and the new configuration it may have founded a cluster there
	w.awaitReady(3)
	w.check(writes)
	assert.Len(t, w.voters(), 3)
}

// awaitConfig waits until a pod is one of the newest revision.
func (w *world) awaitConfig(name string) {
	w.t.Helper()
	cluster.Eventually(w.t, name+" has the new configuration", func() error {
		set, err := w.Client.AppsV1().StatefulSets(w.namespace).Get(w.t.Context(), "etcd-main", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod := w.pods()[name]
		if pod == nil || pod.Labels["controller-revision-hash"] != set.Status.UpdateRevision || set.Status.ObservedGeneration != set.Generation {
			return errNotYet
		}
		return nil
	})
}
