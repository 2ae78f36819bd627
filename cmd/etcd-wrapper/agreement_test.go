package main_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFailedInitializationIsAskedForAgainUntilItSucceeds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.verdicts = []string{"Failed", "Failed", "Successful"}
	p.sidecar.takes = 20 * time.Millisecond
	w := p.start()
	w.awaitReady()
	assert.Equal(t, []string{"full", "full", "full"}, p.sidecar.modes())
	assert.Len(t, w.log.matching(line{"event": "config valid"}), 1, "etcd is opened once")
	assert.Len(t, p.sidecar.told("Failed"), 2)
	w.stopCleanly()
}

func TestSidecarMayComeUpLate(t *testing.T) {
	t.Parallel()
	p := placeWithoutSidecar(t)
	w := p.start()
	w.awaitLine(line{"event": "no answer", "to": "Wait"})
	assert.Equal(t, http.StatusServiceUnavailable, w.readyz())
	p.sidecar.listen()
	w.awaitReady()
	assert.Equal(t, []string{"full"}, p.sidecar.modes())
	w.stopCleanly()
}

func TestVerdictInTwoPacketsIsNotLostAndActedUponAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.takes, p.sidecar.halves = 500*time.Millisecond, 50*time.Millisecond
	w := p.start()
	w.awaitReady()
	p.oneInitialization()
	assert.Less(t, w.openedAt().Sub(p.sidecar.lastVerdict()), 500*time.Millisecond, "from the verdict to the start of etcd")
	w.stopCleanly()
}

func TestConfigurationThatIsUnavailableCostsNoSecondInitialization(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]fault{
		"500": say(http.StatusInternalServerError, ""), "cut": cut, "redirect": redirect, "endless": endless,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.sidecar.faults[configPath] = times(3, broken)
			w := p.start()
			w.awaitReady()
			p.oneInitialization()
			assert.Len(t, p.sidecar.requests(configPath), 4)
			assert.Empty(t, p.sidecar.requests(trapPath), "redirects are not followed")
			w.stopCleanly()
		})
	}
}

func TestConfigurationMayTakeSevenSecondsToTheFirstByte(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.sidecar.slow, p.sidecar.takes = 7100*time.Millisecond, 5*time.Second
	w := p.start()
	w.awaitReady()
	p.oneInitialization()
	assert.Less(t, w.openedAt().Sub(p.sidecar.requests(startPath)[0].at), 10*time.Second, "the validation is not waited for first")
	assert.True(t, p.sidecar.told("Successful")[0].at.Before(w.openedAt()), "etcd starts after the verdict")
	assert.Len(t, p.sidecar.requests(configPath), 2, "the early fetch comes first, the one after the verdict is not waited for")
	w.stopCleanly()
}

func TestOnlyTheVerdictItselfOpensEtcd(t *testing.T) {
	t.Parallel()
	for name, misleading := range map[string]fault{
		"an empty body":             say(http.StatusOK, ""),
		"the word in lower case":    say(http.StatusOK, "successful"),
		"the word with a tail":      say(http.StatusOK, "Successful!"),
		"the word in a page":        say(http.StatusOK, "<html>Successful</html>"),
		"the word twice":            say(http.StatusOK, "Successful Successful"),
		"the word with another 2xx": say(http.StatusAccepted, "Successful"),
		"the word with 500":         say(http.StatusInternalServerError, "Successful"),
		"a redirect to the word":    redirect,
		"a word that breaks off":    cutShort,
		"no reply":                  cut,
		"a body without end":        endless,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.sidecar.faults[statusPath] = times(2, misleading)
			w := p.start()
			w.awaitReady()
			p.oneInitialization()
			assert.Empty(t, p.sidecar.requests(trapPath), "redirects are not followed")
			assert.True(t, p.sidecar.told("Successful")[0].at.Before(w.openedAt()), "etcd starts after the verdict")
			assert.GreaterOrEqual(t, len(p.sidecar.requests(statusPath)), 4, "the misleading replies were not the last")
			w.stopCleanly()
		})
	}
}

func TestTriggerThatIsNotHeardIsRepeated(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]fault{"cut": cut, "503": say(http.StatusServiceUnavailable, "")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.writeRecord("terminated")
			p.sidecar.faults[startPath] = times(2, broken)
			w := p.start()
			w.awaitReady()
			assert.Equal(t, []string{"sanity", "sanity", "sanity"}, p.sidecar.modes())
			assert.Len(t, p.sidecar.told("Successful"), 1)
			w.stopCleanly()
		})
	}
}

// openedAt is when etcd was started, once.
func (w *wrapper) openedAt() time.Time {
	w.t.Helper()
	started := w.log.matching(line{"message": "starting an etcd server"})
	require.Len(w.t, started, 1)
	at, err := time.Parse(time.RFC3339Nano, started[0]["time"].(string))
	require.NoError(w.t, err)
	return at
}

// oneInitialization says that the sidecar was asked for one, and told its verdict once.
func (p *place) oneInitialization() {
	p.t.Helper()
	require.Len(p.t, p.sidecar.requests(startPath), 1, "one initialization")
	require.Len(p.t, p.sidecar.told("Successful"), 1, "one verdict")
	for _, r := range p.sidecar.filter(func(r request) bool { return r.method != "" }) {
		require.Equal(p.t, http.MethodGet, r.method, r.path)
	}
}
