# Completion of etcd-wrapper for bash: source <(etcd-wrapper completion bash)
_etcd_wrapper() {
	local line=${COMP_LINE:0:COMP_POINT} words word last
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=('')
	last=${words[${#words[@]} - 1]}
	COMPREPLY=()
	while IFS=$'\t' read -r word _; do
		[[ $word == :* ]] && continue # a directive of etcd's tools
		COMPREPLY+=("${word#"${last%"${last##*=}"}"}") # bash begins a word of its own after =
	done < <("$1" __complete "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _etcd_wrapper etcd-wrapper
