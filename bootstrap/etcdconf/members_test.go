package etcdconf_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

// forAll is a configuration for three members, in the form that the operator generates.
const forAll = `name: etcd-config
data-dir: /var/etcd/data/new.etcd
quota-backend-bytes: 8589934592
initial-cluster-token: etcd-cluster
initial-cluster: etcd-main-0=http://etcd-main-0.peer:2380,etcd-main-1=http://etcd-main-1.peer:2380,etcd-main-2=http://etcd-main-2.peer:2380
initial-advertise-peer-urls:
  etcd-main-0: [http://etcd-main-0.peer:2380]
  etcd-main-1: [http://etcd-main-1.peer:2380]
  etcd-main-2: [http://etcd-main-2.peer:2380]
advertise-client-urls:
  etcd-main-0: [http://etcd-main-0.peer:2379]
  etcd-main-1: [http://etcd-main-1.peer:2379, http://10.0.0.1:2379]
  etcd-main-2: [http://etcd-main-2.peer:2379]
`

func TestSharedConfiguration_member(t *testing.T) {
	document, err := etcdconf.ForMember([]byte(forAll), "etcd-main-1")
	require.NoError(t, err)
	cfg := parse(t, string(document)).Etcd
	assert.Equal(t, "etcd-main-1", cfg.Name)
	assert.Equal(t, int64(8589934592), cfg.QuotaBackendBytes)
	require.Len(t, cfg.AdvertisePeerUrls, 1)
	assert.Equal(t, "http://etcd-main-1.peer:2380", cfg.AdvertisePeerUrls[0].String())
	require.Len(t, cfg.AdvertiseClientUrls, 2)
	assert.Equal(t, "http://10.0.0.1:2379", cfg.AdvertiseClientUrls[0].String(), "etcd sorts them")
	assert.Contains(t, string(document), "quota-backend-bytes: 8589934592\n", "the number stays whole")
}

func TestSharedConfiguration_namePrefix(t *testing.T) {
	prefixed := strings.ReplaceAll(forAll, "etcd-main-", "shoot-a-etcd-main-") + "member-name-prefix: shoot-a\n"
	document, err := etcdconf.ForMember([]byte(prefixed), "etcd-main-2")
	require.NoError(t, err)
	assert.Equal(t, "shoot-a-etcd-main-2", parse(t, string(document)).Etcd.Name)
}

func TestInitialCluster_isCompleted(t *testing.T) {
	const tail = "etcd-main-9=http://a:2380,etcd-main-10=http://b:2380,etcd-main-10=http://c:2380"
	const maps = `initial-advertise-peer-urls: {etcd-main-10: [http://b:2380, http://c:2380], etcd-main-9: http://a:2380}
advertise-client-urls: {etcd-main-9: [http://a:2379]}
data-dir: /var/etcd/data/new.etcd
`
	for given, want := range map[string]string{
		"":                                       tail,
		"initial-cluster: other=http://d:2380\n": "other=http://d:2380," + tail,
		"initial-cluster: etcd-main-9=http://a:2380\n": tail,
	} {
		document, err := etcdconf.ForMember([]byte(given+maps), "etcd-main-9")
		require.NoError(t, err)
		assert.Equal(t, want, parse(t, string(document)).Etcd.InitialCluster, given)
	}
}

func TestSharedConfiguration_singleMemberIsUnchanged(t *testing.T) {
	for _, document := range []string{minimal, "# kept\n" + minimal, sidecarYAML(t), "\t: broken", "", "a: 1\na: 2\n"} {
		same, err := etcdconf.ForMember([]byte(document), "")
		require.NoError(t, err)
		assert.Equal(t, document, string(same))
	}
}

func TestSharedConfiguration_errors(t *testing.T) {
	for name, test := range map[string]struct {
		old, changed, pod, want string
		nameless                bool
	}{
		"no pod": {nameless: true, want: "initial-advertise-peer-urls: has URLs by member, but POD_NAME is not set, so this member is unknown; set it from metadata.name"},
		"a pod too many": {
			pod:  "etcd-main-3",
			want: `initial-advertise-peer-urls: has no URLs for this member, "etcd-main-3", as POD_NAME or the host name has it`,
		},
		"no client URLs": {
			old: "  etcd-main-0: [http://etcd-main-0.peer:2379]\n", changed: "",
			want: `advertise-client-urls: has no URLs for this member, "etcd-main-0", as POD_NAME or the host name has it`,
		},
		"not by member": {
			old: "advertise-client-urls:\n", changed: "advertise-client-urls: http://a:2379\nunknown:\n",
			want: "advertise-client-urls: initial-advertise-peer-urls and advertise-client-urls must both have URLs by member",
		},
		"peers not by member": {
			old: "initial-advertise-peer-urls:\n", changed: "initial-advertise-peer-urls: http://a:2380\nunknown:\n",
			want: "initial-advertise-peer-urls: initial-advertise-peer-urls and advertise-client-urls must both have URLs by member",
		},
		"empty list": {
			old: "[http://etcd-main-2.peer:2379]", changed: "[]", pod: "etcd-main-2",
			want: `advertise-client-urls: must have a list of URLs for "etcd-main-2", not an empty one`,
		},
		"no text": {
			old: "[http://etcd-main-0.peer:2379]", changed: "{a: b}",
			want: `advertise-client-urls: must have a list of URLs for "etcd-main-0"`,
		},
		"cluster no text": {old: "initial-cluster: ", changed: "initial-cluster: []\nunknown: ", want: "initial-cluster: must be text"},
		"prefix no text":  {old: "name: ", changed: "member-name-prefix: 3\nname: ", want: "member-name-prefix: must be text"},
		"a key twice":     {old: "name: ", changed: "name: a\nname: ", want: "name is given twice, again on line 2: the last one counts; take one out, because a file for several members must not be ambiguous"},
		"another prefix": {
			old: "name: ", changed: "member-name-prefix: shoot\nname: ",
			want: `initial-advertise-peer-urls: has no URLs for this member, "shoot-etcd-main-0", as POD_NAME or the host name has it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := cmp.Or(test.pod, "etcd-main-0")
			if test.nameless {
				pod = ""
			}
			document := strings.Replace(forAll, test.old, test.changed, min(1, len(test.old)))
			_, err := etcdconf.ForMember([]byte(document), pod)
			var bad *etcdconf.KeyError
			require.ErrorAs(t, err, &bad)
			assert.EqualError(t, err, "etcd configuration: "+test.want)
		})
	}
}

func TestJoinConfiguration_listsCurrentMembers(t *testing.T) {
	document, err := etcdconf.ForNewMember([]byte("# ours\nname: m-0\ninitial-cluster: m-0=http://127.0.0.1:1\nquota-backend-bytes: 8589934592\n"),
		"m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2")
	require.NoError(t, err)
	assert.YAMLEq(t, "name: m-0\ninitial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\ninitial-cluster-state: existing\nquota-backend-bytes: 8589934592\n",
		string(document))
	assert.Contains(t, string(document), "8589934592", "an integer stays one")

	_, err = etcdconf.ForNewMember([]byte("- no mapping"), "m-0=http://127.0.0.1:1")
	require.Error(t, err)
}
