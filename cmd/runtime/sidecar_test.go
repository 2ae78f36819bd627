package runtime

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/status"
)

// spoken is a sidecar that says words one after the other; "" is no answer.
type spoken struct {
	words []bootstrap.InitializationStatus
}

func (s *spoken) Status(context.Context) (bootstrap.InitializationStatus, error) {
	word := s.words[0]
	s.words = s.words[1:]
	if word == "" {
		return "", errors.New("no answer")
	}
	return word, nil
}

func (*spoken) Trigger(context.Context, bootstrap.Mode) error { return nil }

func (*spoken) Config(context.Context) ([]byte, error) { return []byte("name: x"), nil }

func TestInitializationsAreCountedByModeAndVerdict(t *testing.T) {
	counts := metrics.New()
	words := []bootstrap.InitializationStatus{"New", "Progress", "Failed", "New", "", "New", "New", "Restore", "Successful", "Successful", "Restore"}
	sidecar := &countedSidecar{Sidecar: &spoken{words}, counts: counts}
	for _, word := range words {
		heard, _ := sidecar.Status(t.Context())
		require.Equal(t, word, heard)
		if word == bootstrap.New {
			require.NoError(t, sidecar.Trigger(t.Context(), bootstrap.Full))
		}
	}
	_, err := sidecar.Config(t.Context())
	require.NoError(t, err)

	w := httptest.NewRecorder()
	counts.Handler(func() status.Document { return status.Document{} }, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`initializations_total{mode="full",verdict="failed"} 1`,
		`initializations_total{mode="full",verdict="lost"} 2`,
		`initializations_total{mode="full",verdict="successful"} 1`,
		`initializations_total{mode="unasked",verdict="successful"} 1`,
		`sidecar_request_duration_seconds_count{call="status",outcome="ok"} 10`,
		`sidecar_request_duration_seconds_count{call="status",outcome="error"} 1`,
		`sidecar_request_duration_seconds_count{call="trigger",outcome="ok"} 4`,
		`sidecar_request_duration_seconds_count{call="config",outcome="ok"} 1`,
	} {
		require.Contains(t, w.Body.String(), "\netcd_wrapper_"+line)
	}
	require.NotContains(t, w.Body.String(), `verdict="restore"`, "a word that is no verdict is not counted as one")
}
