package page_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/readiness/page"
)

func TestThePolicyAllowsWhatThePageHasAndNothingElse(t *testing.T) {
	w := httptest.NewRecorder()
	page.Handler(`<svg id="drawn"/>`).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	policy, body := w.Header().Get("Content-Security-Policy"), w.Body.String()
	require.Contains(t, body, `<svg id="drawn"/>`)
	require.Contains(t, policy, "default-src 'none'")
	require.NotContains(t, policy, "unsafe")
	for _, kind := range []string{"style", "script"} {
		inline := regexp.MustCompile(`(?s)<` + kind + `>(.*)</` + kind + `>`).FindStringSubmatch(body)
		require.Len(t, inline, 2)
		sum := sha256.Sum256([]byte(inline[1]))
		require.Contains(t, policy, kind+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	require.NotRegexp(t, `(?i)(src|href)="(https?:)?//`, body, "no network")
	require.NotRegexp(t, `(?i) style=| on[a-z]+="`, body, "the policy would refuse these")
}
