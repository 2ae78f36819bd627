// Command shim replaces etcd in etcd's own tests. The shim writes etcd's flags and environment variables to a
// configuration file and executes etcd-wrapper from its own directory. For gateways and proxies, which etcd-wrapper
// does not implement, the shim executes plain etcd from the same directory.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		become("plain-etcd", os.Args[1:]...)
	}
	given := parse(os.Args[1:])
	if given.Lookup("version").Value.String() == "true" {
		fmt.Printf("etcd Version: %s\nGit SHA: none\n", version.Version)
		return
	}
	file := given.Lookup("config-file").Value.String()
	data := given.Lookup("data-dir").Value.String()
	if data == "" {
		data = given.Lookup("name").Value.String() + ".etcd"
	}
	data, err := filepath.Abs(data)
	must(err)
	volume := data + ".volume"
	must(os.MkdirAll(volume, 0o700))
	if file == "" {
		config := configuration(given)
		config["data-dir"] = data
		written, err := json.Marshal(config) // JSON is valid YAML
		must(err)
		file = filepath.Join(volume, "etcd.json")
		must(os.WriteFile(file, written, 0o600))
	}
	become("etcd-wrapper", "start-etcd", "--standalone", "--volume-dir="+volume, "--etcd-config-file="+file,
		"--stored-config-path="+filepath.Join(volume, "stored.yaml"), "--termination-message-path="+filepath.Join(volume, "ended"),
		"--etcd-wrapper-port="+strconv.Itoa(port(given)), "--log-level="+level(given))
}

// parse parses the flags of etcd's main function.
func parse(args []string) *flag.FlagSet {
	set := flag.NewFlagSet("etcd", flag.ExitOnError)
	embed.NewConfig().AddFlags(set)
	set.String("config-file", "", "")
	set.String("initial-cluster-state", "", "")
	set.String("discovery-fallback", "", "")
	set.Var(flags.NewSelectiveStringsValue(string(config.V2Depr1WriteOnly), string(config.V2Depr1WriteOnlySkipCheck),
		string(config.V2Depr1WriteOnlyDrop), string(config.V2Depr2Gone)), "v2-deprecation", "")
	set.Bool("version", false, "")
	must(set.Parse(args))
	must(flags.SetFlagsFromEnv(zap.NewNop(), "ETCD", set))
	return set
}

// nested maps flags to configuration keys whose names differ.
var nested = map[string]string{
	"cert-file":                          "client-transport-security/cert-file",
	"key-file":                           "client-transport-security/key-file",
	"client-cert-file":                   "client-transport-security/client-cert-file",
	"client-key-file":                    "client-transport-security/client-key-file",
	"client-cert-auth":                   "client-transport-security/client-cert-auth",
	"trusted-ca-file":                    "client-transport-security/trusted-ca-file",
	"auto-tls":                           "client-transport-security/auto-tls",
	"client-cert-allowed-hostname":       "client-transport-security/allowed-hostname",
	"peer-cert-file":                     "peer-transport-security/cert-file",
	"peer-key-file":                      "peer-transport-security/key-file",
	"peer-client-cert-file":              "peer-transport-security/client-cert-file",
	"peer-client-key-file":               "peer-transport-security/client-key-file",
	"peer-client-cert-auth":              "peer-transport-security/client-cert-auth",
	"peer-trusted-ca-file":               "peer-transport-security/trusted-ca-file",
	"peer-auto-tls":                      "peer-transport-security/auto-tls",
	"peer-cert-allowed-cn":               "peer-transport-security/allowed-cn",
	"peer-cert-allowed-hostname":         "peer-transport-security/allowed-hostname",
	"peer-skip-client-san-verification":  "peer-transport-security/skip-client-san-verification",
	"discovery-token":                    "discovery-config/token",
	"discovery-endpoints":                "discovery-config/client/endpoints",
	"discovery-dial-timeout":             "discovery-config/client/dial-timeout",
	"discovery-request-timeout":          "discovery-config/client/request-timeout",
	"discovery-keepalive-time":           "discovery-config/client/keepalive-time",
	"discovery-keepalive-timeout":        "discovery-config/client/keepalive-timeout",
	"discovery-insecure-transport":       "discovery-config/client/secure/insecure-transport",
	"discovery-insecure-skip-tls-verify": "discovery-config/client/secure/insecure-skip-tls-verify",
	"discovery-cert":                     "discovery-config/client/secure/cert",
	"discovery-key":                      "discovery-config/client/secure/key",
	"discovery-cacert":                   "discovery-config/client/secure/cacert",
	"discovery-user":                     "discovery-config/client/auth/username",
	"discovery-password":                 "discovery-config/client/auth/password",
}

// configuration returns the settings as a configuration file.
func configuration(given *flag.FlagSet) map[string]any {
	config := map[string]any{}
	given.Visit(func(f *flag.Flag) {
		place := f.Name
		if other, ok := nested[f.Name]; ok {
			place = other
		}
		put(config, strings.Split(place, "/"), value(given, f))
	})
	if discovery, ok := config["discovery-config"]; ok { // the flags do not support TLS for discovery either
		put(discovery.(map[string]any), []string{"client", "secure", "insecure-transport"}, given.Lookup("discovery-insecure-transport").Value.String() == "true")
	}
	for _, ofCommandLine := range []string{"config-file", "discovery-fallback", "v2-deprecation", "version"} {
		delete(config, ofCommandLine)
	}
	return config
}

// value returns the value of a flag in YAML.
func value(given *flag.FlagSet, f *flag.Flag) any {
	switch typed := f.Value.(type) {
	case *flags.StringsValue:
		return []string(*typed)
	case *flags.UniqueStringsValue:
		if f.Name == "discovery-endpoints" {
			return flags.UniqueStringsFromFlag(given, f.Name)
		}
	case flag.Getter:
		return typed.Get()
	}
	if f.Name == "max-concurrent-streams" { // the flag's type does not implement flag.Getter
		return json.Number(f.Value.String())
	}
	return f.Value.String()
}

func put(into map[string]any, path []string, value any) {
	if len(path) == 1 {
		into[path[0]] = value
		return
	}
	section, _ := into[path[0]].(map[string]any)
	if section == nil {
		section = map[string]any{}
		into[path[0]] = section
	}
	put(section, path[1:], value)
}

// port returns the port of the wrapper's own server. It is derived from the test's client port, if there is one, by
// subtracting below.
func port(given *flag.FlagSet) int {
	first, _, _ := strings.Cut(given.Lookup("listen-client-urls").Value.String(), ",")
	u, err := url.Parse(first)
	must(err)
	if chosen, err := strconv.Atoi(u.Port()); err == nil && chosen > below+1024 {
		return chosen - below
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// below is the difference between a client port of etcd's tests and a port that the tests do not use. etcd's tests
// use ports starting at 10000 and 20000.
const below = 4000

func level(given *flag.FlagSet) string {
	switch asked := given.Lookup("log-level").Value.String(); asked {
	case "panic", "fatal":
		return "error"
	default:
		return asked
	}
}

func become(name string, args ...string) {
	self, err := os.Executable()
	must(err)
	path := filepath.Join(filepath.Dir(self), name)
	must(syscall.Exec(path, append([]string{path}, args...), os.Environ()))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
		os.Exit(1)
	}
}
