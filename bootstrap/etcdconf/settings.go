package etcdconf

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/pkg/v3/netutil"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/internal/disk"
)

// settings is the typed view of a document: etcd's exported configuration, and the keys that exist only in the file.
type settings struct {
	embed.Config
	fileKeys
	warnings []string // warnings about accepted but unusual values
}

// fileKeys are the keys of etcd's file format for which embed.Config has no tag. etcd reads them into a struct that
// is not exported; a test compares the two.
type fileKeys struct {
	ListenPeer      string `json:"listen-peer-urls"`
	ListenClient    string `json:"listen-client-urls"`
	ListenHTTP      string `json:"listen-client-http-urls"`
	AdvertisePeer   string `json:"initial-advertise-peer-urls"`
	AdvertiseClient string `json:"advertise-client-urls"`

	Origins        string `json:"cors"`
	AcceptedHosts  string `json:"host-whitelist"`
	ServerFeatures string `json:"feature-gates"`

	ClientSecurity security `json:"client-transport-security"`
	PeerSecurity   security `json:"peer-transport-security"`
}

// view decodes a filtered document on top of etcd's defaults.
func view(document map[string]any) (*settings, error) {
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, keyErrorf("", "cannot be encoded: %w", err)
	}
	s := &settings{Config: *embed.NewConfig()}
	if err := json.Unmarshal(asJSON, s); err != nil {
		return nil, keyErrorf("", "cannot be decoded: %w", err)
	}
	return s, nil
}

// check checks the values in an order in which later checks can rely on earlier ones.
func (s *settings) check() error {
	for _, check := range []func() error{
		s.checkDirectories,
		s.checkURLs,
		s.checkListeners,
		s.checkCORS,
		s.checkMembership,
		s.checkClientSecurity,
		s.checkPeerSecurity,
		s.checkTLSVersions,
		s.checkTiming,
		s.checkCompaction,
		s.checkLogLevel,
		s.checkAuthToken,
		s.checkV2Deprecation,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

var (
	// sharedDirectories are used by many programs, so none of them may be etcd's directory. A directory below them
	// may be.
	sharedDirectories = []string{"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
	// systemTrees belong to the operating system, including everything below them.
	systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"}
)

// checkDirectories protects system directories: etcd writes to its directories, and the sidecar may delete them.
func (s *settings) checkDirectories() error {
	if s.Dir == "" {
		return keyErrorf("data-dir", "is required")
	}
	if err := checkDirectory("data-dir", s.Dir); err != nil || s.WalDir == "" {
		return err
	}
	return checkDirectory("wal-dir", s.WalDir)
}

func checkDirectory(key, path string) error {
	clean := filepath.Clean(path)
	switch {
	case strings.TrimSpace(path) != path:
		return keyErrorf(key, "%s has white space at its start or end", quote(path))
	case !filepath.IsAbs(path):
		return keyErrorf(key, "%s is not an absolute path", quote(path))
	case slices.Contains(sharedDirectories, clean) || slices.ContainsFunc(systemTrees, contains(clean)):
		return keyErrorf(key, "%s is a directory of the system", quote(path))
	}
	return nil
}

// contains returns a predicate that reports whether path is a tree's root or below it.
func contains(path string) func(tree string) bool {
	return func(tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }
}

// defaultCluster is etcd's default for initial-cluster.
var defaultCluster = embed.NewConfig().InitialCluster

// checkMembership requires this member in the initial cluster, unless a discovery service or a log knows the members.
func (s *settings) checkMembership() error {
	if s.Name == "" {
		return keyErrorf("name", "must not be empty")
	}
	if s.Durl != "" || s.DNSCluster != "" || len(s.DiscoveryCfg.Endpoints) > 0 {
		return nil
	}
	// Without an initial cluster this builds name=URL from the advertised peer URLs. etcd starts despite its errors.
	_, _ = s.UpdateDefaultClusterFromName(defaultCluster)
	err := s.checkInitialCluster()
	if err != nil && hasLog(&s.Config) {
		s.warnings = append(s.warnings, fmt.Sprintf("%s; etcd goes by its log and does not look at it", err))
		return nil
	}
	return err
}

func (s *settings) checkInitialCluster() error {
	for pair := range strings.SplitSeq(s.InitialCluster, ",") {
		_, peer, found := strings.Cut(pair, "=")
		if _, err := types.NewURLs([]string{peer}); pair != "" && (!found || err != nil) {
			return keyErrorf("initial-cluster", "%s is not of the form name=scheme://host:port", quote(pair))
		}
	}
	members, err := types.NewURLsMap(s.InitialCluster)
	switch {
	case err != nil:
		return keyErrorf("initial-cluster", "is not a list of name=URL pairs")
	case members[s.Name] == nil:
		return keyErrorf("initial-cluster", "does not name this member, %s", quote(s.Name))
	case config.CheckDuplicateURL(members):
		return keyErrorf("initial-cluster", "gives one URL to two members")
	}
	return s.checkAdvertiseURLs(members[s.Name], len(members) > 1)
}

// checkAdvertiseURLs requires a member to advertise the peer URLs that the cluster lists for it. URLs that differ only
// in a host name may be equal once the name is resolved, which CheckFounding does. A member that has lost its data and
// its address may also list its previous URL, so that the others recognize it.
func (s *settings) checkAdvertiseURLs(listed types.URLs, mayJoin bool) error {
	advertised := types.URLs(slices.Clone(s.AdvertisePeerUrls))
	advertised.Sort()
	same := func(a, b url.URL) bool {
		bothIPs := net.ParseIP(a.Hostname()) != nil && net.ParseIP(b.Hostname()) != nil
		return a.Scheme == b.Scheme && a.Port() == b.Port() && (a.Hostname() == b.Hostname() || !bothIPs)
	}
	matched := func(urls, others types.URLs) bool {
		return !slices.ContainsFunc(urls, func(u url.URL) bool {
			return !slices.ContainsFunc(others, func(other url.URL) bool { return same(u, other) })
		})
	}
	switch advertises := matched(advertised, listed); {
	case advertises && matched(listed, advertised):
		return nil
	case advertises && mayJoin:
		s.warnings = append(s.warnings, "initial-cluster has more URLs of this member than initial-advertise-peer-urls: "+
			"it can join again, but not create a cluster")
		return nil
	}
	return differentURLs(advertised, listed)
}

func differentURLs(advertised, listed types.URLs) error {
	return keyErrorf("initial-advertise-peer-urls", "%s is not what initial-cluster has for this member, %s; give both the same URLs",
		quote(advertised.String()), quote(listed.String()))
}

// hasLog reports whether etcd has a log, which makes it ignore initial-cluster.
func hasLog(etcd *embed.Config) bool {
	return wal.Exist(cmp.Or(etcd.WalDir, datadir.ToWALDir(etcd.Dir)))
}

// resolveTimeout bounds how long CheckFounding resolves names; etcd waits as long.
const resolveTimeout = 30 * time.Second

// CheckFounding returns an error if etcd would refuse to create this member, because initial-cluster lists other peer
// URLs for it than it advertises. etcd resolves their names before it compares them. It does not compare them for a
// member that has a log or joins a cluster.
func CheckFounding(ctx context.Context, etcd *embed.Config) error {
	members, err := types.NewURLsMap(etcd.InitialCluster)
	listed, advertised := members[etcd.Name], types.URLs(etcd.AdvertisePeerUrls)
	if err != nil || listed == nil || etcd.ClusterState != embed.ClusterStateFlagNew || hasLog(etcd) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	equal, _ := netutil.URLStringsEqual(bounded, zap.NewNop(), advertised.StringSlice(), listed.StringSlice())
	if equal || ctx.Err() != nil {
		return nil
	}
	return differentURLs(advertised, listed)
}

// checkTiming guards against an overflow: embed.Config.Validate multiplies the values, so a huge heartbeat passes its
// check and panics in raft.
func (s *settings) checkTiming() error {
	if s.TickMs > s.ElectionMs/5 {
		return keyErrorf("election-timeout", "%d ms is less than five times the heartbeat-interval of %d ms", s.ElectionMs, s.TickMs)
	}
	return nil
}

// checkCompaction parses the retention as etcd does at its start: a number means hours or revisions, anything else is
// a duration.
func (s *settings) checkCompaction() error {
	const key = "auto-compaction-retention"
	if n, err := strconv.Atoi(s.AutoCompactionRetention); err == nil && n >= 0 {
		if s.AutoCompactionMode == embed.CompactorModePeriodic && n > int(math.MaxInt64/time.Hour) {
			return keyErrorf(key, "%d hours are too long", n)
		}
		return nil
	}
	if d, err := time.ParseDuration(cmp.Or(s.AutoCompactionRetention, "0")); err != nil || d < 0 {
		return keyErrorf(key, "%s is neither a number nor a duration such as 30m", quote(s.AutoCompactionRetention))
	}
	return nil
}

// checkTLSVersions names the key of an invalid version, which embed.Config.Validate does not. It also checks the
// cipher suites, which etcd does not parse until it starts.
func (s *settings) checkTLSVersions() error {
	for key, value := range map[string]string{"tls-min-version": s.TlsMinVersion, "tls-max-version": s.TlsMaxVersion} {
		if _, err := tlsutil.GetTLSVersion(value); err != nil {
			return keyErrorf(key, "%s is neither TLS1.2 nor TLS1.3", quote(value))
		}
	}
	if _, err := tlsutil.GetCipherSuites(s.CipherSuites); err != nil {
		return keyErrorf("cipher-suites", "%s", shorten(err.Error()))
	}
	return nil
}

// checkLogLevel prevents a panic: etcd passes any word to zap as a level.
func (s *settings) checkLogLevel() error {
	if _, err := zapcore.ParseLevel(s.LogLevel); err != nil {
		return keyErrorf("log-level", "%s is not a log level such as info", quote(s.LogLevel))
	}
	return nil
}

// checkAuthToken creates the token provider, as etcd does at its start. It reads the key files first, because etcd
// would block on a pipe.
func (s *settings) checkAuthToken() error {
	for option := range strings.SplitSeq(s.AuthToken, ",") {
		name, path, _ := strings.Cut(option, "=")
		if name != "pub-key" && name != "priv-key" {
			continue
		}
		if _, err := disk.ReadCertificates(path); err != nil {
			err = bootstrap.Mark(err, bootstrap.ErrCertificates)
			return keyErrorf("auth-token", "its jwt specification names a %s that cannot be read: %w", name, err)
		}
	}
	if _, err := auth.NewTokenProvider(zap.NewNop(), s.AuthToken, nil, time.Second); err != nil {
		return keyErrorf("auth-token", "is neither simple nor a usable jwt specification: %w", err)
	}
	return nil
}

// checkV2Deprecation prevents a panic in the server, which knows only these stages.
func (s *settings) checkV2Deprecation() error {
	stages := []config.V2DeprecationEnum{
		"", config.V2Depr0NotYet, config.V2Depr1WriteOnly, config.V2Depr1WriteOnlySkipCheck,
		config.V2Depr1WriteOnlyDrop, config.V2Depr2Gone,
	}
	if !slices.Contains(stages, s.V2Deprecation) {
		return keyErrorf("v2-deprecation", "%s is not a stage that etcd knows", quote(string(s.V2Deprecation)))
	}
	return nil
}
