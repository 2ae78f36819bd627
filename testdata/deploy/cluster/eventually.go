package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience limits how long Eventually retries, and how long tests wait for other conditions.
const Patience = 5 * time.Minute

// Eventually calls try until it returns nil. If it still returns an error after Patience, the test fails. what
// describes the expected condition.
func Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	require.NoError(t, err, "%s, within %s", what, Patience)
}
