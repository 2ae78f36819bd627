package page_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness/page"
)

func handler() http.Handler {
	return page.Handler(lifecycle.Overview(), lifecycle.Diagram.JSON())
}

// get requests the page. headers alternates between header names and values.
func get(handler http.Handler, headers ...string) *httptest.ResponseRecorder {
	request, reply := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	handler.ServeHTTP(reply, request)
	return reply
}

func TestPolicyAllowsOnlyThePagesOwnScriptAndStyle(t *testing.T) {
	reply := get(handler())
	policy, body := reply.Header().Get("Content-Security-Policy"), reply.Body.String()
	require.Contains(t, body, lifecycle.Overview())
	require.Contains(t, policy, "default-src 'none'")
	require.NotContains(t, policy, "unsafe")
	require.Equal(t, "nosniff", reply.Header().Get("X-Content-Type-Options"))
	for _, kind := range []string{"style", "script"} {
		inline := regexp.MustCompile(`(?s)<` + kind + `>(.*)</` + kind + `>`).FindStringSubmatch(body)
		require.Len(t, inline, 2)
		sum := sha256.Sum256([]byte(inline[1]))
		require.Contains(t, policy, kind+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	require.NotRegexp(t, `(?i)(src|href)="(https?:)?//`, body, "nothing is loaded from other servers")
	require.NotRegexp(t, `(?i) style=| on[a-z]+="`, body, "the policy would block inline styles and handlers")
	require.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write`, body, "text is never interpreted as HTML")
}

func TestTableTextCannotCloseItsElement(t *testing.T) {
	body := get(page.Handler("<svg/>", `{"why": "</script><script>alert(1)</script>"}`)).Body.String()
	require.NotContains(t, body, "alert(1)</script>")
	data := regexp.MustCompile(`(?s)id="table">(.*?)</script>`).FindStringSubmatch(body)
	require.Len(t, data, 2)
	require.JSONEq(t, `{"why": "</script><script>alert(1)</script>"}`, data[1])
	require.True(t, json.Valid([]byte(data[1])))
}

func TestPageIsCompressedForClientsThatAcceptIt(t *testing.T) {
	h := handler()
	plain := get(h)
	require.Empty(t, plain.Header().Get("Content-Encoding"))
	for _, accept := range []string{"gzip", "br, gzip;q=0.5", "deflate,GZIP ; q=1"} {
		zipped := get(h, "Accept-Encoding", accept)
		require.Equal(t, "gzip", zipped.Header().Get("Content-Encoding"), accept)
		require.Equal(t, "Accept-Encoding", zipped.Header().Get("Vary"))
		require.Less(t, zipped.Body.Len(), 24<<10, "the page is small")
		require.Less(t, plain.Body.Len(), 150<<10)
		unzip, err := gzip.NewReader(zipped.Body)
		require.NoError(t, err)
		content, err := io.ReadAll(unzip)
		require.NoError(t, err)
		require.Equal(t, plain.Body.String(), string(content))
	}
	for _, accept := range []string{"br", "gzip;q=0", "gzip; q=0.000, br", "gzippy"} {
		require.Empty(t, get(h, "Accept-Encoding", accept).Header().Get("Content-Encoding"), accept)
	}
}

func TestBrowserWithTheCurrentPageGetsNotModified(t *testing.T) {
	h := handler()
	tag := get(h, "Accept-Encoding", "gzip").Header().Get("ETag")
	for _, accept := range []string{"gzip", "identity"} {
		again := get(h, "Accept-Encoding", accept, "If-None-Match", `"other", `+tag)
		require.Equal(t, http.StatusNotModified, again.Code)
		require.Zero(t, again.Body.Len())
		require.Equal(t, tag, again.Header().Get("ETag"))
	}
	require.Equal(t, http.StatusOK, get(page.Handler("<svg/>", "{}"), "Accept-Encoding", "gzip", "If-None-Match", tag).Code, "the ETag of a different page does not match")
}

func TestDiagramPolicyForbidsEverything(t *testing.T) {
	reply := get(page.Diagram(lifecycle.Diagram.SVG()))
	require.Equal(t, "image/svg+xml", reply.Header().Get("Content-Type"))
	require.True(t, strings.HasPrefix(reply.Header().Get("Content-Security-Policy"), "default-src 'none'"))
	require.Equal(t, lifecycle.Diagram.SVG(), reply.Body.String())
	require.NotContains(t, reply.Body.String(), " style=", "the policy would block inline styles")
}
