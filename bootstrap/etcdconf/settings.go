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

// settings is the typed form of a document: etcd's exported configuration and the keys that exist only in the file.
type settings struct {
	embed.Config
	fileKeys
	warnings []string // accepted but unusual values
}

// fileKeys holds the keys of the configuration file that have no tag in embed.Config. etcd decodes these keys into an
// unexported struct. A test compares fileKeys with etcd's struct.
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

// decodeSettings decodes a filtered document. Keys that are not in the document have etcd's default values.
func decodeSettings(document map[string]any) (*settings, error) {
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, keyErrorf("", "cannot encode the document: %w", err)
	}
	s := &settings{Config: *embed.NewConfig()}
	if err := json.Unmarshal(asJSON, s); err != nil {
		return nil, keyErrorf("", "cannot decode the document: %w", err)
	}
	return s, nil
}

// check checks all values. The order matters, because later checks rely on earlier ones.
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
	// sharedDirectories lists directories that many programs share. etcd may use a subdirectory but not the directory
	// itself.
	sharedDirectories = []string{"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
	// systemTrees lists directories that etcd must not use, nor any of their subdirectories, because they belong to
	// the operating system.
	systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"}
)

// checkDirectories protects system directories, because etcd writes to its directories and the sidecar may delete
// them.
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
		return keyErrorf(key, "%s has leading or trailing white space", quote(path))
	case !filepath.IsAbs(path):
		return keyErrorf(key, "%s is not an absolute path", quote(path))
	case slices.Contains(sharedDirectories, clean) || slices.ContainsFunc(systemTrees, contains(clean)):
		return keyErrorf(key, "%s is a system directory", quote(path))
	}
	return nil
}

// contains returns a function that reports whether path is in the given directory tree.
func contains(path string) func(tree string) bool {
	return func(tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }
}

// defaultCluster is the default value of initial-cluster in etcd.
var defaultCluster = embed.NewConfig().InitialCluster

// checkMembership requires initial-cluster to contain this member, unless the members come from a discovery service
// or from the log.
func (s *settings) checkMembership() error {
	if s.Name == "" {
		return keyErrorf("name", "must not be empty")
	}
	if s.Durl != "" || s.DNSCluster != "" || len(s.DiscoveryCfg.Endpoints) > 0 {
		return nil
	}
	// If initial-cluster is not set, build it from the advertised peer URLs. Ignore the result and the error, as
	// etcd does.
	_, _ = s.UpdateDefaultClusterFromName(defaultCluster)
	err := s.checkInitialCluster()
	if err != nil && hasLog(&s.Config) {
		s.warnings = append(s.warnings, fmt.Sprintf("%s; ignored because etcd takes the members from its log", err))
		return nil
	}
	return err
}

func (s *settings) checkInitialCluster() error {
	for pair := range strings.SplitSeq(s.InitialCluster, ",") {
		_, peer, found := strings.Cut(pair, "=")
		if _, err := types.NewURLs([]string{peer}); pair != "" && (!found || err != nil) {
			return keyErrorf("initial-cluster", "%s does not have the form name=scheme://host:port", quote(pair))
		}
	}
	members, err := types.NewURLsMap(s.InitialCluster)
	switch {
	case err != nil:
		return keyErrorf("initial-cluster", "must be a list of name=URL pairs")
	case members[s.Name] == nil:
		return keyErrorf("initial-cluster", "does not contain this member (%s)", quote(s.Name))
	case config.CheckDuplicateURL(members):
		return keyErrorf("initial-cluster", "two members have the same URL")
	}
	return s.checkAdvertiseURLs(members[s.Name], len(members) > 1)
}

// checkAdvertiseURLs requires a member to advertise the peer URLs listed for it in initial-cluster. Host names may
// differ, because CheckFounding resolves them before it compares them. If a member has lost both its data and its
// address, initial-cluster may also contain its previous URL, so that the other members recognize it.
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
		s.warnings = append(s.warnings, "initial-cluster has more URLs for this member than initial-advertise-peer-urls: "+
			"the member can rejoin a cluster but not create one")
		return nil
	}
	return differentURLs(advertised, listed)
}

func differentURLs(advertised, listed types.URLs) error {
	return keyErrorf("initial-advertise-peer-urls", "%s does not match %s, the URLs of this member in initial-cluster; use the same URLs in both",
		quote(advertised.String()), quote(listed.String()))
}

// hasLog reports whether the member has a log. If it does, etcd takes the members from the log and ignores
// initial-cluster.
func hasLog(etcd *embed.Config) bool {
	return wal.Exist(cmp.Or(etcd.WalDir, datadir.ToWALDir(etcd.Dir)))
}

// resolveTimeout is the timeout for name resolution in CheckFounding, the same as in etcd.
const resolveTimeout = 30 * time.Second

// CheckFounding returns an error if etcd would refuse to create this member because, after name resolution, its
// advertised peer URLs differ from its URLs in initial-cluster. etcd does not compare the URLs if the member has a
// log or joins a cluster.
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

// checkTiming requires the election timeout to be at least five times the heartbeat interval. embed.Config.Validate
// also checks this, but its multiplication overflows, so a huge heartbeat interval would pass and then make raft
// panic.
func (s *settings) checkTiming() error {
	if s.TickMs > s.ElectionMs/5 {
		return keyErrorf("election-timeout", "%d ms is less than five times the heartbeat-interval of %d ms", s.ElectionMs, s.TickMs)
	}
	return nil
}

// checkCompaction parses the retention as etcd does at startup: a plain number means hours in periodic mode and
// revisions in revision mode, and anything else must be a duration.
func (s *settings) checkCompaction() error {
	const key = "auto-compaction-retention"
	if n, err := strconv.Atoi(s.AutoCompactionRetention); err == nil && n >= 0 {
		if s.AutoCompactionMode == embed.CompactorModePeriodic && n > int(math.MaxInt64/time.Hour) {
			return keyErrorf(key, "%d hours exceeds the maximum of %d", n, int(math.MaxInt64/time.Hour))
		}
		return nil
	}
	if d, err := time.ParseDuration(cmp.Or(s.AutoCompactionRetention, "0")); err != nil || d < 0 {
		return keyErrorf(key, "%s is neither a number nor a duration such as 30m", quote(s.AutoCompactionRetention))
	}
	return nil
}

// checkTLSVersions checks the TLS versions, because the errors from embed.Config.Validate do not name the key. It
// also checks the cipher suites, because etcd parses them only at startup.
func (s *settings) checkTLSVersions() error {
	for key, value := range map[string]string{"tls-min-version": s.TlsMinVersion, "tls-max-version": s.TlsMaxVersion} {
		if _, err := tlsutil.GetTLSVersion(value); err != nil {
			return keyErrorf(key, "must be TLS1.2 or TLS1.3, not %s", quote(value))
		}
	}
	if _, err := tlsutil.GetCipherSuites(s.CipherSuites); err != nil {
		return keyErrorf("cipher-suites", "%s", shorten(err.Error()))
	}
	return nil
}

// checkLogLevel prevents a panic in etcd, which passes the level to zap without checking it.
func (s *settings) checkLogLevel() error {
	if _, err := zapcore.ParseLevel(s.LogLevel); err != nil {
		return keyErrorf("log-level", "%s is not a valid log level", quote(s.LogLevel))
	}
	return nil
}

// checkAuthToken creates a token provider, as etcd does at startup. The key files are read beforehand, because etcd
// would block on a pipe.
func (s *settings) checkAuthToken() error {
	for option := range strings.SplitSeq(s.AuthToken, ",") {
		name, path, _ := strings.Cut(option, "=")
		if name != "pub-key" && name != "priv-key" {
			continue
		}
		if _, err := disk.ReadCertificates(path); err != nil {
			err = bootstrap.Mark(err, bootstrap.ErrCertificates)
			return keyErrorf("auth-token", "cannot read the %s of the jwt specification: %w", name, err)
		}
	}
	if _, err := auth.NewTokenProvider(zap.NewNop(), s.AuthToken, nil, time.Second); err != nil {
		return keyErrorf("auth-token", "must be \"simple\" or a valid jwt specification: %w", err)
	}
	return nil
}

// checkV2Deprecation prevents a panic in etcd, which supports only these stages.
func (s *settings) checkV2Deprecation() error {
	stages := []config.V2DeprecationEnum{
		"", config.V2Depr0NotYet, config.V2Depr1WriteOnly, config.V2Depr1WriteOnlySkipCheck,
		config.V2Depr1WriteOnlyDrop, config.V2Depr2Gone,
	}
	if !slices.Contains(stages, s.V2Deprecation) {
		return keyErrorf("v2-deprecation", "%s is not a known deprecation stage", quote(string(s.V2Deprecation)))
	}
	return nil
}
