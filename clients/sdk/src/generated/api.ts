/* Generated from the routes of the API by `npm run generate`. Do not edit. */

export interface paths {
    "/api/disks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the disks of the account, oldest first
         * @description Pages are in the order of creation. With `name` the list has that disk or nothing.
         */
        get: operations["listDisks"];
        put?: never;
        /**
         * Create a disk, or find the one of that name and configuration
         * @description A call with the name and configuration of a disk that exists answers 200 with that disk, so it can be repeated. The answer to the first one has the token of the default disk user.
         */
        post: operations["createDisk"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a disk
         * @description Figures that were never measured are left out.
         */
        get: operations["getDisk"];
        put?: never;
        post?: never;
        /**
         * Delete a disk and everything that belongs to it
         * @description Commands that run on the disk are ended, and its contents are gone for good. Refused while a sandbox mounts it.
         */
        delete: operations["deleteDisk"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/allowed-ips": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Addresses from which the disk may be mounted; empty: all
         * @description They bind disk users; API keys reach the disk from everywhere.
         */
        get: operations["getAllowedIps"];
        /**
         * Replace the addresses from which the disk may be mounted
         * @description The list counts from the next request on. An empty list lifts every restriction.
         */
        put: operations["setAllowedIps"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/allowed-origins": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Origins whose pages may read objects and shared files; empty: none
         * @description They concern browsers alone, which ask for CORS; they give nobody rights.
         */
        get: operations["getAllowedOrigins"];
        /**
         * Replace the origins whose pages may read objects and shared files
         * @description The list counts from the next request on; browsers may remember preflights for ten minutes.
         */
        put: operations["setAllowedOrigins"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/delegations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Exclusive write leases that running commands hold or await on the disk
         * @description Commands take such leases with `checkoutPaths` or `queueMs`.
         */
        get: operations["listDelegations"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/revoke-delegation": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Take a write lease away; the command that holds it is ended
         * @description A command that waits for the lease gives up; one that holds it answers `delegation_revoked`.
         */
        post: operations["revokeDelegation"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/mounts/{mountId}/credentials": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Replace the credentials of the object storage behind a disk
         * @description A host tries them before the answer: `connectionStatus` says what came of it. All of the former credentials are forgotten.
         */
        post: operations["setMountCredentials"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/users": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Let a user mount the disk
         * @description The disk token of a new token user is in this answer and nowhere else. With it S3 clients reach the disk.
         */
        post: operations["addDiskUser"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/users/{userType}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Take a user off the disk
         * @description Its credentials stop working at once. The user is named by `identifier`.
         */
        delete: operations["removeDiskUser"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/share": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make a link with which anybody can download one file, for a time
         * @description The link is signed and stored nowhere: it ends when it expires, or with the API key that made it.
         */
        post: operations["createShareUrl"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/shared/{token}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Download a shared file, or parts of it; the link is the credential
         * @description Ranges and preconditions work as RFC 9110 says. Content is sent as an attachment, which browsers do not run.
         */
        get: operations["downloadShared"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/exec": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run a shell command with the disk at /mnt/service and wait for its end
         * @description The command runs as `bash -c` in a container of its own, without a network. With a 503 it was not begun.
         */
        post: operations["execOnDisk"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/exec": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run a shell command with several disks below /mnt/service and wait for its end
         * @description Either every disk is mounted or the command does not run. Paths of `disks` may not overlap.
         */
        post: operations["execOnDisks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/grep": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Search the files of a directory for a regular expression, with parallel workers
         * @description Text files are searched line by line until the directory is done or a bound is reached, which `stoppedReason` tells. Nothing is written.
         */
        post: operations["grepDisk"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/disks/{id}/grep/stream": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Search as grep does, and be given matches as they are found
         * @description Server-sent events: `matches` with a list of matches, any number of times; then `end` with the other fields of a grep’s answer, or `failed` with `code` and `error` when the search was lost on the way. What fails before the first match is answered as an error.
         */
        post: operations["streamGrep"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the sandboxes of the account, oldest first
         * @description Sandboxes in every state.
         */
        get: operations["listSandboxes"];
        put?: never;
        /**
         * Create a sandbox, a virtual machine of its own, and start it
         * @description Answered while it starts, or with `wait` when it runs, if that is within 20 seconds. Every field is optional.
         */
        post: operations["createSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a sandbox
         * @description What the record does not have, the sandbox does not have now.
         */
        get: operations["getSandbox"];
        put?: never;
        post?: never;
        /**
         * Delete a sandbox that is stopped, exited or failed, with its disk
         * @description Forks that share its disk have to be deleted first; the error names them.
         */
        delete: operations["deleteSandbox"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Measure what a sandbox uses
         * @description Measured by its host for this request. What the host cannot measure is missing, and so is what only a running sandbox has.
         */
        get: operations["getSandboxMetrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/start": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Start a sandbox from its disk; one that runs or starts already stays as it is
         * @description Memory of a paused sandbox is discarded: it boots from its disk. Answered while it starts, or with `wait` when it runs, if that is within 20 seconds.
         */
        post: operations["startSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Stop a sandbox; its processes end, its disk stays
         * @description It shuts down by itself if it does so in time, and is ended otherwise. A paused one loses its memory.
         */
        post: operations["stopSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Pause a sandbox; memory and processes are kept, its machine ends
         * @description What is in memory is written to storage of the host. Answered while it is `pausing`, or with `wait` when it is paused, if that is within 20 seconds. A sandbox that is paused or stopped stays as it is.
         */
        post: operations["pauseSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Resume a paused sandbox where it was
         * @description Only a paused sandbox can be resumed. One that runs, or resumes already, stays as it is. A pause that waits for requests (`drain_on_pause`) is cancelled.
         */
        post: operations["resumeSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/fork": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Copy a sandbox that is running, paused or stopped, and start the copy
         * @description The copy has the disk of the source and, when that runs or is paused, its memory. The source continues as before.
         */
        post: operations["forkSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/timeout": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Set how long a sandbox may run, or be idle, before it is paused
         * @description What is left out stays as it is.
         */
        post: operations["setSandboxLimits"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/execs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the newest commands of a sandbox in the order of their execution
         * @description At most the newest 100, without their output. Commands of process connections are not among them.
         */
        get: operations["listSandboxExecs"];
        put?: never;
        /**
         * Run a shell command in a running sandbox
         * @description Answered when the command runs, or with `wait` when it has ended, if that is within 20 seconds. Commands outlive the connection and restarts of the host's agent.
         */
        post: operations["execInSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/execs/{eid}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a command of a sandbox with what is kept of its output
         * @description Output is what was written until now; when there is too much of it the beginning is dropped.
         */
        get: operations["getSandboxExec"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/execs/{eid}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * End a command of a sandbox; one that has ended stays as it is
         * @description The command and what it started are killed.
         */
        post: operations["cancelSandboxExec"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/connections": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Get the running sandbox of a name, with a WebSocket URL for its processes
         * @description As connectSandbox does, for a caller who knows the name alone: one request instead of a look-up and another one.
         */
        post: operations["connectSandboxByName"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/connections": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Get a short-lived WebSocket URL for the processes of a running sandbox
         * @description Open a WebSocket to the URL within a minute to start, attach to and control processes. The connection outlives the token in the URL.
         */
        post: operations["connectSandbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/processes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the processes of sessions in a running sandbox
         * @description Those that sessions started, also when nobody is attached: they run on, and sessions attach to them by their ids. Commands of execs have a list of their own. Asking does not count as a use of the sandbox.
         */
        get: operations["listSandboxProcesses"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read a file of a running sandbox, or parts of it
         * @description Ranges and preconditions work as RFC 9110 says. Only regular files are read: of a directory use the list.
         */
        get: operations["readSandboxFile"];
        /**
         * Write a file of a running sandbox, in place of one that is there
         * @description The new content appears in one step once all of it has arrived; until then, and when the upload is cut, the old file stays. The answer is 201 when the file is new.
         */
        put: operations["writeSandboxFile"];
        post?: never;
        /**
         * Remove a file, a link, or a directory of a running sandbox
         * @description A link goes itself, not what it leads to. File systems that are mounted below a directory are left alone, and the directory with them: `file_busy`.
         */
        delete: operations["removeSandboxFile"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files/list": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List a directory of a running sandbox
         * @description In the order of the bytes of their names, a directory before what is in it. What is there throughout is listed once, whatever changes between pages. Links are listed as links.
         */
        get: operations["listSandboxFiles"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files/stat": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show what is at a path of a running sandbox
         * @description Of any type: with `follow=false` a link itself, with where it leads.
         */
        get: operations["statSandboxFile"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files/move": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Move or rename a file or directory of a running sandbox
         * @description In one step, within one file system. A link moves itself.
         */
        post: operations["moveSandboxFile"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files/directories": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make a directory in a running sandbox
         * @description The answer is 201 when it is new. With `parents` a directory that is there already is no error: 200, and it stays as it is.
         */
        post: operations["createSandboxDirectory"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/files/watch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Be told of changes in a directory of a running sandbox, as they happen
         * @description Server-sent events: `ready`, then `created`, `modified`, `removed` and `attributes` with the path; `overflow` when some may be missing, so that the caller lists the directory anew; `end` with the reason, when the sandbox pauses or stops, too.
         */
        get: operations["watchSandboxFiles"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/network": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show what a sandbox may connect to
         * @description Secrets of its rules are left out.
         */
        get: operations["getSandboxNetwork"];
        /**
         * Replace what a running sandbox may connect to; new connections follow it at once
         * @description The whole policy is replaced. Connections that are open go on.
         */
        put: operations["setSandboxNetwork"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/network/decisions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List what was decided about connections of a sandbox, newest first
         * @description Connections that were judged alike are one entry with a count. They are kept for six hours after the last one.
         */
        get: operations["listSandboxNetworkDecisions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/ports": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the ports of a sandbox that were exposed to the public
         * @description Ports that a service of the sandbox publishes are not among them.
         */
        get: operations["listSandboxPorts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/ports/{port}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Expose a port to the public: requests to it need no token
         * @description Whoever knows the hostname reaches the port, until the key ends that exposes it. A request to a paused or stopped sandbox wakes it.
         */
        put: operations["exposeSandboxPort"];
        post?: never;
        /**
         * Expose a port no longer; one that a service publishes stays public
         * @description Open connections go on; port tokens keep working.
         */
        delete: operations["unexposeSandboxPort"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/port-tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the port tokens of a sandbox that have not expired, oldest first
         * @description The tokens themselves are never shown again.
         */
        get: operations["listSandboxPortTokens"];
        put?: never;
        /**
         * Create a token that opens a port of a sandbox
         * @description The token is in this answer and nowhere else. It opens one port of one sandbox, whether that is exposed or not.
         */
        post: operations["createSandboxPortToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/port-tokens/{tokenId}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a port token, without the token itself
         * @description The token itself is never shown again.
         */
        get: operations["getSandboxPortToken"];
        put?: never;
        post?: never;
        /**
         * Revoke a port token; open connections stay
         * @description The next request with the token is refused.
         */
        delete: operations["deleteSandboxPortToken"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sandboxes/{sid}/snapshots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Keep disk and memory of a sandbox as something to create sandboxes from
         * @description The sandbox continues as before. Answered while the snapshot is being made; with `wait`, once it is made or after 20 seconds.
         */
        post: operations["createSnapshot"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/snapshots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the snapshots of the account, oldest first
         * @description Failed ones are listed until they are deleted.
         */
        get: operations["listSnapshots"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/snapshots/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a snapshot
         * @description Its status tells whether sandboxes can be created from it.
         */
        get: operations["getSnapshot"];
        put?: never;
        post?: never;
        /**
         * Delete a snapshot that no sandbox stands on
         * @description Sandboxes that were created from it have to be deleted first; the error names them.
         */
        delete: operations["deleteSnapshot"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the API keys of the account, oldest first
         * @description The keys themselves are never shown again.
         */
        get: operations["listApiKeys"];
        put?: never;
        /**
         * Create an API key
         * @description The whole key is in this answer and nowhere else. It has all rights of the account unless `scopes` says which, and ends no later than the key that makes it.
         */
        post: operations["createApiKey"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/tokens/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Delete an API key; it stops working at once
         * @description Its webhooks and the ports that it made public end with it; the answer names them. Requests with the key that are under way end as they would have.
         */
        delete: operations["deleteApiKey"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/activity": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the latest changes that keys of the account asked for, newest first
         * @description Every call that changes something leaves one event, refused ones too. About the last 10,000 are kept, and about the last 1,000 of those that were refused.
         */
        get: operations["listActivity"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show what the account used in a month, and its limits
         * @description Measured figures, up to some seconds ago. Months are kept for a year.
         */
        get: operations["getUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the webhooks of the account, oldest first
         * @description Their secrets are never shown again.
         */
        get: operations["listWebhooks"];
        put?: never;
        /**
         * Have the events of the activity sent to a URL
         * @description Each event is sent by POST, signed as Standard Webhooks says with the secret in this answer, and sent again until the receiver answers with 2xx, for about ten minutes. The webhook ends with the key that makes it.
         */
        post: operations["createWebhook"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks/{webhookId}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Delete a webhook
         * @description What has not been sent to it is not sent any more.
         */
        delete: operations["deleteWebhook"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/webhooks/{webhookId}/deliveries": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the latest attempts to send events to a webhook, newest first
         * @description Up to 100 attempts of the last 30 days.
         */
        get: operations["listWebhookDeliveries"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/images": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Build an image that sandboxes can be created from
         * @description Answered at once, while the image is being built; a build of the same image that is under way is joined. A reference to a tag is looked up and built again each time, one to a digest only until it was built.
         */
        post: operations["buildImage"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/images/{image_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show an image, and how far its build is
         * @description A private image is there for its own account only.
         */
        get: operations["getImage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the hosts of the region
         * @description Figures are up to some seconds old. Hosts that are away stay until they are removed.
         */
        get: operations["listHosts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a host
         * @description While it is drained, `sandboxesActive`, `execsRunning` and `disks` count what is left.
         */
        get: operations["getHost"];
        put?: never;
        post?: never;
        /**
         * Remove a host that will not come back
         * @description Its sandboxes and snapshots are forgotten, and its disks free for other hosts. The machine must be off: two hosts that use one disk destroy its contents. An agent with its id is refused from then on.
         */
        delete: operations["deleteHost"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/{id}/cordon": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Let a host take nothing new
         * @description It gets no new sandboxes, forks included, and no disks; those that are idle are attached elsewhere. Its own sandboxes go on, and may be paused and resumed. Kept until another order is given, also for a host that is away. Giving it again changes nothing.
         */
        post: operations["cordonHost"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/{id}/uncordon": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Let a cordoned or drained host work again
         * @description Sandboxes that were paused stay so until somebody resumes them. Kept until another order is given, also for a host that is away. Giving it again changes nothing.
         */
        post: operations["uncordonHost"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/{id}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Take all work from a host
         * @description As cordoned; besides, its running sandboxes are paused, none of its sandboxes is resumed or started, and its disks go as their commands end. Answered when that has begun: read the host until it is `drained`. Kept until another order is given, also for a host that is away. Giving it again changes nothing.
         */
        post: operations["drainHost"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/{id}/fence": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Say that a host which is away is off
         * @description Other hosts that share its storage of sandboxes then take its sandboxes over: those at rest as they are, those that ran from their disks, with `exit_reason` `host_lost`. The machine must be off, or cut off from the storage. Holds until the host reports again.
         */
        post: operations["fenceHost"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/hosts/join": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Give a new host the settings of the cluster, for an invitation
         * @description For `berth-agent join`. `scripts/admin host invite` makes the token that the proof is derived from. The first host to show it is the only one to get an answer.
         */
        post: operations["joinHost"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** ActivityEvent */
        ActivityEvent: {
            /**
             * @description A UUID that begins with the time.
             * @example 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
             */
            eventId: string;
            /**
             * @description The account whose key was used.
             * @example acct-0a1b2c3d4e5f6071
             */
            accountId: string;
            /**
             * @description The disk that it was about; absent for other things.
             * @example dsk-0a1b2c3d4e5f6071
             */
            diskId?: string;
            /**
             * @description What was asked for.
             * @example account.limits_changed
             * @enum {unknown}
             */
            eventType: "account.limits_changed" | "disk.created" | "disk.deleted" | "disk.allowed_ips_changed" | "disk.allowed_origins_changed" | "disk.credentials_changed" | "disk.delegation_revoked" | "disk.exec" | "disk.objects_deleted" | "disk.shared" | "disk.user_added" | "disk.user_removed" | "host.cordoned" | "host.drained" | "host.fenced" | "host.invited" | "host.joined" | "host.removed" | "host.uncordoned" | "image.requested" | "key.created" | "key.deleted" | "sandbox.connected" | "sandbox.created" | "sandbox.deleted" | "sandbox.directory_created" | "sandbox.exec" | "sandbox.exec_cancelled" | "sandbox.file_moved" | "sandbox.file_removed" | "sandbox.file_written" | "sandbox.forked" | "sandbox.limits_changed" | "sandbox.network_changed" | "sandbox.paused" | "sandbox.port_closed" | "sandbox.port_exposed" | "sandbox.port_token_created" | "sandbox.port_token_deleted" | "sandbox.resumed" | "sandbox.started" | "sandbox.stopped" | "snapshot.created" | "snapshot.deleted" | "webhook.created" | "webhook.deleted";
            /**
             * @description `info`: done; `warning`: refused, so that nothing has changed; `error`: failed, possibly half-way.
             * @example info
             * @enum {unknown}
             */
            level: "info" | "warning" | "error";
            /**
             * Format: date-time
             * @description When the answer was ready.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * @description Who (`keyId`, `address`), what (`operation`, `params`, ids of what was made), and how it ended (`outcome`, `status`, `code`, `requestId`). Never a body or a secret.
             * @example {
             *       "operation": "createDisk",
             *       "outcome": "done",
             *       "status": 201
             *     }
             */
            details: {
                [key: string]: unknown;
            };
        };
        /** AllowedIps */
        AllowedIps: {
            /**
             * @description IP addresses and CIDR blocks from which disk users may reach the disk; empty: from everywhere.
             * @example [
             *       "192.0.2.10",
             *       "198.51.100.0/24"
             *     ]
             */
            allowedIps: string[];
        };
        /** AllowedOrigins */
        AllowedOrigins: {
            /**
             * @description Origins whose pages may read objects and shared files of the disk in browsers, or `*` for all; empty: none.
             * @example [
             *       "https://app.example.com"
             *     ]
             */
            allowedOrigins: string[];
        };
        /** ApiKey */
        ApiKey: {
            /**
             * @description SHA-256 of the key, in hex.
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            id: string;
            /**
             * @description For people.
             * @example ci
             */
            name: string;
            /**
             * @description For people.
             * @example nightly builds
             */
            description?: string;
            /**
             * @description The last characters of the key.
             * @example 9f3c
             */
            tokenSuffix: string;
            /**
             * @description What the key may do.
             * @example [
             *       "read"
             *     ]
             */
            scopes: ("read" | "disk" | "sandbox" | "admin" | "operator")[];
            /**
             * Format: date-time
             * @description When the key was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * Format: date-time
             * @description When it stops working; absent: never.
             * @example 2026-03-01T12:00:00.000Z
             */
            expiresAt?: string;
            /**
             * Format: date-time
             * @description When it was last used, to the minute.
             * @example 2026-03-01T12:00:00.000Z
             */
            lastUsedAt?: string;
        };
        /** BucketMount */
        BucketMount: {
            /**
             * @description Id of the mount.
             * @example mnt-0a1b2c3d4e5f6071
             */
            id: string;
            /**
             * @description Kind of object storage.
             * @example s3
             * @enum {unknown}
             */
            type: "s3" | "s3-compatible" | "r2" | "gcs" | "azure-blob";
            /**
             * @description Where it is on the disk: always its root.
             * @example /
             */
            path: string;
            /**
             * @description The bucket.
             * @example training-data
             */
            name: string;
            /**
             * @description Always `rw`.
             * @example rw
             * @enum {unknown}
             */
            accessMode: "rw" | "ro";
            /** @description What the disk was created with, without secrets. */
            config: {
                /**
                 * @description The bucket.
                 * @example training-data
                 */
                bucketName: string;
                /**
                 * @description Where it is reached; empty: the usual place of its kind.
                 * @example https://objects.example.com
                 */
                bucketEndpoint: string;
                /**
                 * @description The folder of the bucket; empty: all of it.
                 * @example runs/2026/
                 */
                bucketPrefix: string;
                /**
                 * @description Always empty.
                 * @example
                 */
                sessionId: string;
                /**
                 * @description When commands answer.
                 * @example sync
                 * @enum {unknown}
                 */
                writeBack: "sync" | "lazy";
            };
            /**
             * @description What the last attempt to use the bucket showed; `disconnected` before the first one.
             * @example connected
             * @enum {unknown}
             */
            connectionStatus: "connected" | "disconnected" | "error";
            /**
             * @description Why the bucket cannot be used.
             * @example the access key is unknown to the storage
             */
            authError?: string;
            /**
             * @description The kind of credentials.
             * @example iam
             * @enum {unknown}
             */
            authorizationType: "iam" | "accessKeys" | "oauth";
            /**
             * Format: date-time
             * @description When that was found out.
             * @example 2026-03-01T12:00:00.000Z
             */
            checkedAt?: string;
            /**
             * @description How many keys the disk cannot show as they are.
             * @example 0
             */
            problemCount: number;
            /** @description The first of them. */
            problems: {
                /**
                 * @description The key in the bucket.
                 * @example a//b
                 */
                key: string;
                /**
                 * @description Why it is not a file of the disk, or what was done about it.
                 * @example an empty part cannot be a file name
                 */
                reason: string;
            }[];
        };
        /** BuildImage */
        BuildImage: {
            /**
             * @description Reference to an image in a registry: name, name:tag or name@sha256:….
             * @example debian:12
             */
            source: string;
            /** @description Credentials for this build alone: they are never stored. The image is private to the account. */
            registry_auth?: {
                /**
                 * @description User of the registry.
                 * @example builder
                 */
                username: string;
                /**
                 * @description Password or token of that user.
                 * @example a-registry-token
                 */
                password: string;
            };
        };
        /** ConnectByName */
        ConnectByName: {
            /**
             * @description Name of the sandbox.
             * @example build-box
             */
            name: string;
        };
        /** CreateApiKey */
        CreateApiKey: {
            /**
             * @description For people.
             * @example ci
             */
            name: string;
            /**
             * @description For people.
             * @example nightly builds
             */
            description?: string;
            /**
             * @description What the key may do; everything when this is left out.
             * @example [
             *       "read"
             *     ]
             */
            scopes?: ("read" | "disk" | "sandbox" | "admin")[];
            /**
             * Format: date-time
             * @description When the key stops working; never when this is left out. A key that ends by itself makes none that lasts longer.
             * @example 2026-03-01T12:00:00.000Z
             */
            expiresAt?: string;
        };
        /** CreateDirectory */
        CreateDirectory: {
            /**
             * @description Absolute path of the directory.
             * @example /home/user/notes.txt
             */
            path?: string;
            /**
             * @description The same, percent-encoded: for paths that are not UTF-8. One of the two.
             * @example /data/caf%E9.txt
             */
            path_encoded?: string;
            /**
             * @description Permissions, in octal. Of a new one 0755 when omitted; else they stay.
             * @example 0644
             */
            mode?: string;
            /**
             * @description Number of the user. Of a new one that of the sandbox's default user; else it stays.
             * @example 1000
             */
            uid?: number;
            /**
             * @description Number of the group. Of a new one that of the sandbox's default user; else it stays.
             * @example 1000
             */
            gid?: number;
            /**
             * @description Make the directories above it that are missing, with mode 0755 and its owner.
             * @default false
             * @example false
             */
            parents?: boolean;
        } & (unknown | unknown);
        /** CreateDisk */
        CreateDisk: {
            /**
             * @description Unique in the account.
             * @example training-data
             */
            name: string;
            /**
             * @description Object storage that is the contents of the disk; none: a disk of its own.
             * @example []
             */
            mounts?: ({
                /**
                 * @description Amazon S3.
                 * @constant
                 */
                type: "s3";
                /**
                 * @description The bucket.
                 * @example training-data
                 */
                bucketName: string;
                /**
                 * @description Where the storage is reached. Private addresses are refused unless set free.
                 * @example https://objects.example.com
                 */
                bucketEndpoint?: string;
                /**
                 * @description Names the key pair.
                 * @example AKIAIOSFODNN7EXAMPLE
                 */
                accessKeyId?: string;
                /**
                 * @description The secret of the key pair.
                 * @example wJalrXUtnFEMI/EXAMPLEKEY
                 */
                secretAccessKey?: string;
                /**
                 * @description Of temporary credentials.
                 * @example FwoGZXIvYXdzEXAMPLE
                 */
                sessionToken?: string;
                /**
                 * @description Only the keys below this folder are the contents of the disk.
                 * @example runs/2026
                 */
                bucketPrefix?: string;
                /**
                 * @description When a command answers: once what it wrote is in the bucket (`sync`, the default), or before that (`lazy`).
                 * @example sync
                 * @enum {unknown}
                 */
                writeBack?: "sync" | "lazy";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                accessMode?: "rw";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                readOnly?: false;
            } | {
                /**
                 * @description Google Cloud Storage, with an HMAC key.
                 * @constant
                 */
                type: "gcs";
                /**
                 * @description The bucket.
                 * @example training-data
                 */
                bucketName: string;
                /**
                 * @description Where the storage is reached. Private addresses are refused unless set free.
                 * @example https://objects.example.com
                 */
                bucketEndpoint?: string;
                /**
                 * @description Names the key pair.
                 * @example AKIAIOSFODNN7EXAMPLE
                 */
                accessKeyId: string;
                /**
                 * @description The secret of the key pair.
                 * @example wJalrXUtnFEMI/EXAMPLEKEY
                 */
                secretAccessKey: string;
                /**
                 * @description Only the keys below this folder are the contents of the disk.
                 * @example runs/2026
                 */
                bucketPrefix?: string;
                /**
                 * @description When a command answers: once what it wrote is in the bucket (`sync`, the default), or before that (`lazy`).
                 * @example sync
                 * @enum {unknown}
                 */
                writeBack?: "sync" | "lazy";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                accessMode?: "rw";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                readOnly?: false;
            } | {
                /**
                 * @description Any server that speaks S3, or R2.
                 * @example s3-compatible
                 * @enum {unknown}
                 */
                type: "s3-compatible" | "r2";
                /**
                 * @description The bucket.
                 * @example training-data
                 */
                bucketName: string;
                /**
                 * @description Where the storage is reached. Private addresses are refused unless set free.
                 * @example https://objects.example.com
                 */
                bucketEndpoint: string;
                /**
                 * @description Names the key pair.
                 * @example AKIAIOSFODNN7EXAMPLE
                 */
                accessKeyId: string;
                /**
                 * @description The secret of the key pair.
                 * @example wJalrXUtnFEMI/EXAMPLEKEY
                 */
                secretAccessKey: string;
                /**
                 * @description Only the keys below this folder are the contents of the disk.
                 * @example runs/2026
                 */
                bucketPrefix?: string;
                /**
                 * @description When a command answers: once what it wrote is in the bucket (`sync`, the default), or before that (`lazy`).
                 * @example sync
                 * @enum {unknown}
                 */
                writeBack?: "sync" | "lazy";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                accessMode?: "rw";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                readOnly?: false;
            } | {
                /**
                 * @description Azure Blob Storage.
                 * @constant
                 */
                type: "azure-blob";
                /**
                 * @description The container of blobs.
                 * @example training-data
                 */
                containerName: string;
                /**
                 * @description The tenant of the application: its id, or a domain of it.
                 * @example contoso.onmicrosoft.com
                 */
                tenantId: string;
                /**
                 * @description The application.
                 * @example 00001111-aaaa-2222-bbbb-3333cccc4444
                 */
                clientId: string;
                /**
                 * @description The secret of the application.
                 * @example a-client-secret
                 */
                clientSecret: string;
                /**
                 * @description Where the storage account is reached, with https://. Private addresses are refused unless set free.
                 * @example https://trainingdata.blob.core.windows.net
                 */
                endpoint?: string;
                /**
                 * @description The storage account, which the endpoint follows from unless one is given.
                 * @example trainingdata
                 */
                storageAccountName?: string;
                /**
                 * @description Only the keys below this folder are the contents of the disk.
                 * @example runs/2026
                 */
                bucketPrefix?: string;
                /**
                 * @description When a command answers: once what it wrote is in the bucket (`sync`, the default), or before that (`lazy`).
                 * @example sync
                 * @enum {unknown}
                 */
                writeBack?: "sync" | "lazy";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                accessMode?: "rw";
                /**
                 * @description Every mount may be written to.
                 * @constant
                 */
                readOnly?: false;
            })[];
            /**
             * @description IP addresses and CIDR blocks from which disk users may reach the disk; empty: from everywhere.
             * @example [
             *       "192.0.2.10",
             *       "198.51.100.0/24"
             *     ]
             */
            allowedIps?: string[];
            /**
             * @description Origins whose pages may read objects and shared files of the disk in browsers, or `*` for all; empty: none.
             * @example [
             *       "https://app.example.com"
             *     ]
             */
            allowedOrigins?: string[];
            rootAttrs?: components["schemas"]["RootAttrs"];
            /**
             * @deprecated
             * @description Users of the new disk, instead of the default token user.
             * @example [
             *       {
             *         "type": "token",
             *         "nickname": "ci"
             *       }
             *     ]
             */
            authMethods?: ({
                /**
                 * @description A user with a disk token.
                 * @constant
                 */
                type: "token";
                /**
                 * @description For people.
                 * @example ci
                 */
                nickname: string;
                /**
                 * @deprecated
                 * @description A token chosen by the caller, not an API key; needs tokenSuffix. Leave it out and one is made.
                 * @example a-token-of-my-own-choice
                 */
                principal?: string;
                /**
                 * @deprecated
                 * @description The last four characters of `principal`.
                 * @example oice
                 */
                tokenSuffix?: string;
                /**
                 * @description How long its credentials work: a duration such as `90s`, `4m` or `1h30m`, more than 0 and at most 8760h. Not together with expiresAt.
                 * @example 24h
                 */
                ttl?: string;
                /**
                 * Format: date-time
                 * @description When its credentials stop working; without it and ttl they do not end.
                 * @example 2026-03-01T12:00:00.000Z
                 */
                expiresAt?: string;
                /**
                 * @description No user is of one use.
                 * @constant
                 */
                oneUse?: false;
                /**
                 * @description Every user may write.
                 * @constant
                 */
                readOnly?: false;
            } | {
                /**
                 * @description A role of a cloud account.
                 * @example cloudsts
                 * @enum {unknown}
                 */
                type: "cloudsts" | "awssts";
                /**
                 * @description Names the role.
                 * @example arn:aws:iam::123456789012:role/reader
                 */
                principal: string;
                /**
                 * @description How long its credentials work: a duration such as `90s`, `4m` or `1h30m`, more than 0 and at most 8760h. Not together with expiresAt.
                 * @example 24h
                 */
                ttl?: string;
                /**
                 * Format: date-time
                 * @description When its credentials stop working; without it and ttl they do not end.
                 * @example 2026-03-01T12:00:00.000Z
                 */
                expiresAt?: string;
                /**
                 * @description No user is of one use.
                 * @constant
                 */
                oneUse?: false;
                /**
                 * @description Every user may write.
                 * @constant
                 */
                readOnly?: false;
            })[];
        };
        /** CreatePortToken */
        CreatePortToken: {
            /**
             * @description TCP port inside the sandbox.
             * @example 8080
             */
            port: number;
            /**
             * @description A duration such as `90s`, `4m` or `1h30m`, more than 0 and at most 8760h; without it the token never expires.
             * @example 1h30m
             */
            ttl?: string;
        };
        /** CreateSandbox */
        CreateSandbox: {
            /**
             * @description Unique in the account; a random one when omitted.
             * @example build-box
             */
            name?: string;
            /**
             * @description Virtual processors.
             * @default 1
             * @example 1
             */
            vcpu_count?: number;
            /**
             * @description Memory in MiB.
             * @default 2048
             * @example 2048
             */
            mem_size_mib?: number;
            /**
             * @description OCI image reference; the default image when omitted. Built on the way, if it is not there. Not together with image_id.
             * @example debian:12
             */
            base_image?: string;
            /**
             * @description An image that was built by build-image; not together with base_image.
             * @example 5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a
             */
            image_id?: string;
            /**
             * @description Id or name of a snapshot to create it from; not together with base_image, image_id and mounts. Size and image are the snapshot’s, and so is everything else that is omitted.
             * @example after-setup
             */
            snapshot?: string;
            /**
             * @description Names without = and NUL, values without NUL; at most 2048, together at most 128 KiB.
             * @example {
             *       "LANG": "C.UTF-8"
             *     }
             */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Paused when it has run for so long, counted anew each time it comes to run.
             * @default 86400
             * @example 86400
             */
            max_ttl_seconds?: number;
            /**
             * @description Paused when nothing was done in it for so long; 0: never.
             * @default 0
             * @example 0
             */
            idle_ttl_seconds?: number;
            /**
             * @description How many commands may run at once; process connections count separately.
             * @default 32
             * @example 32
             */
            max_concurrent_execs?: number;
            /**
             * @description Exposed to the public from the beginning, as by expose-sandbox-port.
             * @example [
             *       8080
             *     ]
             */
            ports?: number[];
            /**
             * @description Whether every port on which a service in it listens is public.
             * @default false
             * @example false
             */
            enable_service_ingress?: boolean;
            /**
             * @description Shell command that runs in each copy that continues from memory (a fork, a sandbox from a snapshot), while all its other processes are frozen; killed after 10 s. At most 8 KiB; empty: none.
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
            network?: components["schemas"]["NetworkPolicy"];
            /** @description Disks of the account that the sandbox sees as directories. Each disk once, no path within another. */
            mounts?: components["schemas"]["SandboxMountInput"][] | unknown | unknown;
        };
        /** CreateShareUrl */
        CreateShareUrl: {
            /**
             * @description The file, from the root of the disk. At most 1024 bytes in UTF-8.
             * @example reports/march.pdf
             */
            key: string;
            /**
             * @description Seconds for which the link works.
             * @default 86400
             * @example 3600
             */
            expiresIn?: number;
        };
        /** CreateSnapshot */
        CreateSnapshot: {
            /**
             * @description Unique among the snapshots of the account that have not failed.
             * @example after-setup
             */
            name: string;
            /**
             * @description Shell command that runs in each copy that continues from memory (a fork, a sandbox from a snapshot), while all its other processes are frozen; killed after 10 s. At most 8 KiB; empty: none.
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
        };
        /** CreateWebhook */
        CreateWebhook: {
            /**
             * @description Where events are sent: an https:// URL of a public address, without credentials.
             * @example https://hooks.example.com/berth
             */
            url: string;
            /**
             * @description The types of events that are sent; all of them when this is left out.
             * @example [
             *       "sandbox.created"
             *     ]
             */
            eventTypes?: ("account.limits_changed" | "disk.created" | "disk.deleted" | "disk.allowed_ips_changed" | "disk.allowed_origins_changed" | "disk.credentials_changed" | "disk.delegation_revoked" | "disk.exec" | "disk.shared" | "disk.user_added" | "disk.user_removed" | "host.cordoned" | "host.drained" | "host.fenced" | "host.invited" | "host.joined" | "host.removed" | "host.uncordoned" | "image.requested" | "key.created" | "key.deleted" | "sandbox.connected" | "sandbox.created" | "sandbox.deleted" | "sandbox.directory_created" | "sandbox.exec" | "sandbox.exec_cancelled" | "sandbox.file_moved" | "sandbox.file_removed" | "sandbox.file_written" | "sandbox.forked" | "sandbox.limits_changed" | "sandbox.network_changed" | "sandbox.paused" | "sandbox.port_closed" | "sandbox.port_exposed" | "sandbox.port_token_created" | "sandbox.port_token_deleted" | "sandbox.resumed" | "sandbox.started" | "sandbox.stopped" | "snapshot.created" | "snapshot.deleted" | "webhook.created" | "webhook.deleted")[];
        };
        /** CreatedApiKey */
        CreatedApiKey: {
            /**
             * @description SHA-256 of the key, in hex.
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            id: string;
            /**
             * @description For people.
             * @example ci
             */
            name: string;
            /**
             * @description For people.
             * @example nightly builds
             */
            description?: string;
            /**
             * @description The last characters of the key.
             * @example 9f3c
             */
            tokenSuffix: string;
            /**
             * @description What the key may do.
             * @example [
             *       "read"
             *     ]
             */
            scopes: ("read" | "disk" | "sandbox" | "admin" | "operator")[];
            /**
             * Format: date-time
             * @description When the key was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * Format: date-time
             * @description When it stops working; absent: never.
             * @example 2026-03-01T12:00:00.000Z
             */
            expiresAt?: string;
            /**
             * Format: date-time
             * @description When it was last used, to the minute.
             * @example 2026-03-01T12:00:00.000Z
             */
            lastUsedAt?: string;
            /**
             * @description The whole key; only in this answer.
             * @example key-0a1b2c3d4e5f60718293a4b5c6d7e8f9
             */
            token: string;
        };
        /** CreatedDisk */
        CreatedDisk: {
            /**
             * @description Id of the disk.
             * @example dsk-0a1b2c3d4e5f6071
             */
            id: string;
            /**
             * @description Unique in the account.
             * @example training-data
             */
            name: string;
            /**
             * @description The account that owns the disk.
             * @example acct-0a1b2c3d4e5f6071
             */
            organization: string;
            /**
             * @description Commands need an `available` disk.
             * @example creating
             * @enum {unknown}
             */
            status: "creating" | "available" | "deleting" | "deleted" | "failed";
            /**
             * @description The part of the region before its first hyphen.
             * @example local
             */
            provider: string;
            /**
             * @description Where the disk is kept.
             * @example local-dev
             */
            region: string;
            /**
             * Format: date-time
             * @description When the disk was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * @description `attached` while a host holds the disk, else `idle`.
             * @example idle
             */
            fsHandlerStatus: string;
            /**
             * Format: date-time
             * @description When the disk was last used, in whatever way.
             * @example 2026-03-01T12:00:00.000Z
             */
            lastAccessed?: string;
            /**
             * @description Bytes in use, as the file system says.
             * @example 1048576
             */
            dataSize?: number;
            /**
             * @description Bytes in use; the same as `dataSize`.
             * @example 1048576
             */
            activeDataBytes?: number;
            /** @description Object storage behind the disk; empty: it is a disk of its own. */
            mounts: components["schemas"]["BucketMount"][];
            /** @description Figures of the use of the disk. */
            metrics?: {
                /**
                 * @description How many commands, object requests and downloads used the disk.
                 * @example 42
                 */
                requests?: string;
                /**
                 * @description How long they took on average.
                 * @example 12 ms
                 */
                avgResponseTime?: string;
            };
            /** @description Clients of disk users that used the disk within the last minutes. */
            connectedClients: components["schemas"]["DiskClient"][];
            /** @description Who may use the disk directly. */
            authorizedUsers: components["schemas"]["DiskUser"][];
            /**
             * @description Addresses from which disk users may reach the disk; empty: from everywhere.
             * @example [
             *       "192.0.2.10"
             *     ]
             */
            allowedIps: string[];
            /**
             * @description Origins whose pages may read objects and shared files of the disk.
             * @example [
             *       "https://app.example.com"
             *     ]
             */
            allowedOrigins: string[];
            rootAttrs?: components["schemas"]["RootAttrs"];
            /**
             * @description Id of the disk, the same as `id`.
             * @example dsk-0a1b2c3d4e5f6071
             */
            diskId: string;
        };
        /** CreatedPortToken */
        CreatedPortToken: {
            /**
             * @description SHA-256 of the token, in hex.
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            id: string;
            /**
             * @description TCP port inside the sandbox.
             * @example 8080
             */
            port: number;
            /**
             * Format: date-time
             * @description When the token was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            created_at: string;
            /**
             * Format: date-time
             * @description When it expires; absent when it never does.
             * @example 2026-03-01T12:00:00.000Z
             */
            expires_at?: string;
            /**
             * @description `<port>-<route-id>.<zone>`; the same for as long as the sandbox lives.
             * @example 8080-k3v9q2.sbx.localhost
             */
            hostname: string;
            /**
             * @description Sent as X-Service-Token; only in this answer.
             * @example spt-0a1b2c3d4e5f60718293a4b5c6d7e8f9
             */
            token: string;
        };
        /** CreatedWebhook */
        CreatedWebhook: {
            /**
             * @description Id of the webhook.
             * @example 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
             */
            id: string;
            /**
             * @description Where events are sent.
             * @example https://hooks.example.com/berth
             */
            url: string;
            /**
             * @description The types of events that are sent; all of them when this is left out.
             * @example [
             *       "sandbox.created"
             *     ]
             */
            eventTypes?: ("account.limits_changed" | "disk.created" | "disk.deleted" | "disk.allowed_ips_changed" | "disk.allowed_origins_changed" | "disk.credentials_changed" | "disk.delegation_revoked" | "disk.exec" | "disk.shared" | "disk.user_added" | "disk.user_removed" | "host.cordoned" | "host.drained" | "host.fenced" | "host.invited" | "host.joined" | "host.removed" | "host.uncordoned" | "image.requested" | "key.created" | "key.deleted" | "sandbox.connected" | "sandbox.created" | "sandbox.deleted" | "sandbox.directory_created" | "sandbox.exec" | "sandbox.exec_cancelled" | "sandbox.file_moved" | "sandbox.file_removed" | "sandbox.file_written" | "sandbox.forked" | "sandbox.limits_changed" | "sandbox.network_changed" | "sandbox.paused" | "sandbox.port_closed" | "sandbox.port_exposed" | "sandbox.port_token_created" | "sandbox.port_token_deleted" | "sandbox.resumed" | "sandbox.started" | "sandbox.stopped" | "snapshot.created" | "snapshot.deleted" | "webhook.created" | "webhook.deleted")[];
            /**
             * Format: date-time
             * @description When the webhook was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * @description Signs what is sent, as Standard Webhooks says; only in this answer.
             * @example whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
             */
            secret: string;
        };
        /**
         * Delegation
         * @description An exclusive write lease on a path of a disk.
         */
        Delegation: {
            /**
             * @description The command that holds it or waits for it.
             * @example exec-0a1b2c3d
             */
            clientId: string;
            /**
             * @description Inode of the path.
             * @example 12
             */
            inodeId: number;
            /**
             * @description From the root of the disk.
             * @example reports
             */
            path?: string;
            /**
             * @description Whether the command still waits for it.
             * @example true
             */
            isPending: boolean;
            /**
             * @description Whether the command is gone.
             * @example true
             */
            isOrphaned: boolean;
        };
        /** Disk */
        Disk: {
            /**
             * @description Id of the disk.
             * @example dsk-0a1b2c3d4e5f6071
             */
            id: string;
            /**
             * @description Unique in the account.
             * @example training-data
             */
            name: string;
            /**
             * @description The account that owns the disk.
             * @example acct-0a1b2c3d4e5f6071
             */
            organization: string;
            /**
             * @description Commands need an `available` disk.
             * @example creating
             * @enum {unknown}
             */
            status: "creating" | "available" | "deleting" | "deleted" | "failed";
            /**
             * @description The part of the region before its first hyphen.
             * @example local
             */
            provider: string;
            /**
             * @description Where the disk is kept.
             * @example local-dev
             */
            region: string;
            /**
             * Format: date-time
             * @description When the disk was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * @description `attached` while a host holds the disk, else `idle`.
             * @example idle
             */
            fsHandlerStatus: string;
            /**
             * Format: date-time
             * @description When the disk was last used, in whatever way.
             * @example 2026-03-01T12:00:00.000Z
             */
            lastAccessed?: string;
            /**
             * @description Bytes in use, as the file system says.
             * @example 1048576
             */
            dataSize?: number;
            /**
             * @description Bytes in use; the same as `dataSize`.
             * @example 1048576
             */
            activeDataBytes?: number;
            /** @description Object storage behind the disk; empty: it is a disk of its own. */
            mounts: components["schemas"]["BucketMount"][];
            /** @description Figures of the use of the disk. */
            metrics?: {
                /**
                 * @description How many commands, object requests and downloads used the disk.
                 * @example 42
                 */
                requests?: string;
                /**
                 * @description How long they took on average.
                 * @example 12 ms
                 */
                avgResponseTime?: string;
            };
            /** @description Clients of disk users that used the disk within the last minutes. */
            connectedClients: components["schemas"]["DiskClient"][];
            /** @description Who may use the disk directly. */
            authorizedUsers: components["schemas"]["DiskUser"][];
            /**
             * @description Addresses from which disk users may reach the disk; empty: from everywhere.
             * @example [
             *       "192.0.2.10"
             *     ]
             */
            allowedIps: string[];
            /**
             * @description Origins whose pages may read objects and shared files of the disk.
             * @example [
             *       "https://app.example.com"
             *     ]
             */
            allowedOrigins: string[];
            rootAttrs?: components["schemas"]["RootAttrs"];
        };
        /** DiskClient */
        DiskClient: {
            /**
             * @description Names the client.
             * @example client-1
             */
            id: string;
            /**
             * @description Where it connects from.
             * @example 192.0.2.10
             */
            ipAddress: string;
            /**
             * Format: date-time
             * @description When it was first seen.
             * @example 2026-03-01T12:00:00.000Z
             */
            connectedAt: string;
        };
        /** DiskMount */
        DiskMount: {
            /**
             * @description Id of the disk.
             * @example dsk-0a1b2c3d4e5f6071
             */
            disk: string;
            /**
             * @description Only this directory of the disk is mounted; it must exist.
             * @example reports
             */
            subdirectory?: string;
            /**
             * @description Writes fail with EROFS.
             * @example true
             */
            readOnly?: boolean;
            /**
             * @description Several writers may coexist: only what checkoutPaths names is checked out.
             * @example true
             */
            conditional?: boolean;
            /**
             * @description How long to wait for the checkouts. Without checkoutPaths the mount itself is checked out, unless conditional is set.
             * @example 5000
             */
            queueMs?: number;
            /**
             * @description Held while the command runs, each with all beneath it; no other command can check out any of it, or a parent. Relative to the mount; they must exist.
             * @example [
             *       "reports/2026"
             *     ]
             */
            checkoutPaths?: string[];
        };
        /** DiskUser */
        DiskUser: {
            /**
             * @description How the user proves who it is.
             * @example token
             * @enum {unknown}
             */
            type: "token" | "cloudsts" | "awssts";
            /**
             * @description The role, for users that are roles.
             * @example arn:aws:iam::123456789012:role/reader
             */
            principal?: string;
            /**
             * @description For people.
             * @example ci
             */
            nickname?: string;
            /**
             * @description The last characters of the disk token.
             * @example 9f3c
             */
            tokenSuffix?: string;
            /**
             * @description The whole disk token; only in the answer that creates it.
             * @example dtk-0a1b2c3d4e5f
             */
            token?: string;
            /**
             * @description Removes the user.
             * @example user-0a1b2c3d
             */
            identifier: string;
            /**
             * Format: date-time
             * @description When the user was added.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
            /**
             * Format: date-time
             * @description When its credentials stop working; with the API key that added it at the latest.
             * @example 2026-03-01T12:00:00.000Z
             */
            expiresAt?: string;
        };
        /** EndedWithKey */
        EndedWithKey: {
            /** @description Webhooks that the key made. */
            webhooks: {
                /**
                 * @description Id of the webhook.
                 * @example 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
                 */
                id: string;
                /**
                 * @description Where events were sent.
                 * @example https://hooks.example.com/berth
                 */
                url: string;
            }[];
            /** @description Ports that no other key made public; the first 1,000. */
            ports: {
                /**
                 * Format: uuid
                 * @description The sandbox.
                 * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
                 */
                sandbox_id: string;
                /**
                 * @description Its port.
                 * @example 8080
                 */
                port: number;
            }[];
        };
        /** ExecInSandbox */
        ExecInSandbox: {
            /**
             * @description Run as `/bin/sh -c <command>`. At most 1 MiB in UTF-8.
             * @example make test
             */
            command: string;
            /**
             * @description Run it in a terminal; all output is stdout.
             * @default false
             * @example false
             */
            command_tty?: boolean;
            /**
             * @description Names without = and NUL, values without NUL; at most 2048, together at most 128 KiB.
             * @example {
             *       "LANG": "C.UTF-8"
             *     }
             */
            env?: {
                [key: string]: string;
            };
            /**
             * @description The command is ended then; never, when omitted.
             * @example 600
             */
            timeout_seconds?: number;
        };
        /** ExecResult */
        ExecResult: {
            /**
             * @description As shells show it: 128 and the signal when one ended the command.
             * @example 0
             */
            exitCode: number;
            /**
             * @description What the command wrote, at most the last 16 MiB.
             * @example 12
             */
            stdout: string;
            /**
             * @description The same of its standard error, with notes of what was cut.
             * @example
             */
            stderr: string;
            /** @description Milliseconds. */
            timing: {
                /**
                 * @description From arrival to answer.
                 * @example 61
                 */
                totalMs: number;
                /**
                 * @description Until the command started.
                 * @example 22
                 */
                queueMs: number;
                /**
                 * @description The command itself.
                 * @example 39
                 */
                executeMs: number;
            };
        };
        /**
         * Failure
         * @description The envelope of every error.
         */
        Failure: {
            /**
             * @description The call failed.
             * @constant
             */
            success: false;
            /**
             * @description What went wrong and what to do about it, for people.
             * @example disk dsk-0a1b2c3d4e5f6071 not found
             */
            error: string;
            /**
             * @description What went wrong, for programs.
             * @example not_found
             */
            code?: string;
        };
        /** ForkSandbox */
        ForkSandbox: {
            /**
             * @description Unique in the account; a random one when omitted.
             * @example build-box
             */
            name?: string;
            /**
             * @description Refused unless it is the one that the sandbox shows now.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            checkpoint?: string;
            /**
             * @description Shell command that runs in each copy that continues from memory (a fork, a sandbox from a snapshot), while all its other processes are frozen; killed after 10 s. At most 8 KiB; empty: none.
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
        };
        /** GrepMatch */
        GrepMatch: {
            /**
             * @description From the root of the disk, without a leading slash.
             * @example logs/api.log
             */
            file: string;
            /**
             * @description Number of the line.
             * @example 12
             */
            line: number;
            /**
             * @description The line without its newline.
             * @example 12:00:00 ERROR no route
             */
            text: string;
            /**
             * @description The line is longer than 64 KiB and was cut there.
             * @constant
             */
            truncated?: true;
        };
        /** GrepResult */
        GrepResult: {
            /** @description In no particular order. */
            matches: components["schemas"]["GrepMatch"][];
            /**
             * @description Whether everything was searched, and if not, why.
             * @example completed
             * @enum {unknown}
             */
            stoppedReason: "completed" | "incomplete" | "max_results" | "deadline" | "list_failed";
            /**
             * @description Files that were searched to their end.
             * @example 240
             */
            filesScanned: number;
            /**
             * @description How many workers searched.
             * @example 2
             */
            containersDispatched: number;
            /**
             * @description Processor time of the search.
             * @example 0.05
             */
            computeSecondsUsed: number;
            /**
             * @description From arrival to answer.
             * @example 64
             */
            durationMs: number;
            /**
             * @description Time spent reading directories.
             * @example 4
             */
            listingMs: number;
            /**
             * @description From the start of the first worker to the end of the last one.
             * @example 31
             */
            grepMs: number;
            /**
             * @description Why the search is incomplete, or the directory not listed.
             * @example logs: no such directory
             */
            message?: string;
        };
        /** Host */
        Host: {
            /**
             * @description The version of its agent.
             * @example 1.0.0
             */
            version: string;
            /**
             * @description Virtual processors for sandboxes; 0 where it runs none.
             * @example 8
             */
            vcpus: number;
            /**
             * @description Those that no sandbox holds.
             * @example 6
             */
            vcpusFree: number;
            /**
             * @description Memory for sandboxes, in MiB.
             * @example 16384
             */
            memoryMib: number;
            /**
             * @description What no sandbox holds of it, in MiB.
             * @example 12288
             */
            memoryMibFree: number;
            /**
             * @description Free space where it has least.
             * @example 107374182400
             */
            storageFreeBytes: number;
            /**
             * @description How many commands on disks run at once.
             * @example 8
             */
            execSlots: number;
            /**
             * @description Commands on disks that run.
             * @example 1
             */
            execsRunning: number;
            /**
             * @description Commands on disks that wait for a turn.
             * @example 0
             */
            execsWaiting: number;
            /**
             * @description Its sandboxes, those at rest included.
             * @example 12
             */
            sandboxes: number;
            /**
             * @description Those of them that run or change their state.
             * @example 3
             */
            sandboxesActive: number;
            /**
             * @description Disks that are attached there.
             * @example 4
             */
            disks: number;
            /**
             * @description Those of them that its sandboxes mount; paused containers keep theirs.
             * @example 1
             */
            disksHeld: number;
            /**
             * @description How new virtual machines run: `kvm`, or emulated (`tcg`). Absent where sandboxes are containers, or there are none.
             * @example kvm
             * @enum {unknown}
             */
            accelerator?: "kvm" | "tcg";
            /**
             * @description `set` by SANDBOX_ACCELERATOR; `no_device`: there is no /dev/kvm; `probing`: a guest is being booted under KVM; `booted`: it did; `timed_out`: it did not in time; `failed`: QEMU could not run it.
             * @example set
             * @enum {unknown}
             */
            acceleratorReason?: "set" | "no_device" | "probing" | "booted" | "timed_out" | "failed";
            /**
             * @description The first 10 of `sandboxesActive`.
             * @example [
             *       "0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
             *     ]
             */
            sandboxesActiveIds?: string[];
            /**
             * @description The first 10 of `disksHeld`.
             * @example [
             *       "dsk-0123456789abcdef"
             *     ]
             */
            disksHeldIds?: string[];
            /**
             * @description Id of the host.
             * @example host-0a1b2c3d4e5f
             */
            id: string;
            /**
             * @description Its region.
             * @example local-dev
             */
            region: string;
            /**
             * @description `cordoned`: takes nothing new. `draining`: pauses its sandboxes and gives its disks up. `drained`: has no work left. `away`: silent for 15 seconds; its figures are the last that it told. `fenced`: away, and an operator has said that it is off.
             * @example up
             * @enum {unknown}
             */
            state: "up" | "cordoned" | "draining" | "drained" | "away" | "fenced";
            /**
             * @description What the operator wants of it, also while it is away.
             * @example up
             * @enum {unknown}
             */
            order: "up" | "cordoned" | "drained";
            /**
             * Format: date-time
             * @description When it last told its figures.
             * @example 2026-03-01T12:00:00.000Z
             */
            lastHeartbeat: string;
        };
        /** Image */
        Image: {
            /**
             * @description The same for every build of the same source by the same account.
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            image_id: string;
            /**
             * @description The reference, with registry, repository and tag filled in.
             * @example docker.io/library/debian:12
             */
            source: string;
            /**
             * @description Whether it was built with credentials.
             * @example true
             */
            private: boolean;
            /**
             * @description What became of the last build.
             * @example building
             * @enum {unknown}
             */
            status: "building" | "ready" | "failed";
            /**
             * @description Of the last successful build.
             * @example sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a
             */
            digest?: string;
            /**
             * @description The source pinned to that digest.
             * @example docker.io/library/debian@sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a
             */
            canonical_source?: string;
            /**
             * @description Of a failed build: `interrupted` may succeed when it is asked for again, `invalid_source` will not.
             * @example invalid_source
             * @enum {unknown}
             */
            failure_reason?: "invalid_source" | "interrupted";
            /**
             * @description The same in words.
             * @example the registry has no such image: docker.io/library/debian
             */
            failure_message?: string;
            /** @description Of a build under way, once it has begun. */
            progress?: {
                /**
                 * @description What the build is at.
                 * @example waiting
                 * @enum {unknown}
                 */
                step: "waiting" | "resolving" | "pulling" | "unpacking" | "storing";
                /**
                 * @description Bytes of this step.
                 * @example 1048576
                 */
                bytes_done: number;
                /**
                 * @description How many there will be; 0 when that is not known.
                 * @example 4194304
                 */
                bytes_total: number;
            };
            /**
             * Format: date-time
             * @description When it was first asked for.
             * @example 2026-03-01T12:00:00.000Z
             */
            created_at: string;
            /**
             * Format: date-time
             * @description When its status changed last.
             * @example 2026-03-01T12:00:00.000Z
             */
            updated_at: string;
        };
        /** Message */
        Message: {
            /**
             * @description What was done, for people.
             * @example User removed
             */
            message: string;
        };
        /** MountCredentials */
        MountCredentials: {
            /**
             * @description Names the key pair.
             * @example AKIAIOSFODNN7EXAMPLE
             */
            accessKeyId?: string;
            /**
             * @description The secret of the key pair.
             * @example wJalrXUtnFEMI/EXAMPLEKEY
             */
            secretAccessKey?: string;
            /**
             * @description Of temporary credentials.
             * @example FwoGZXIvYXdzEXAMPLE
             */
            sessionToken?: string;
            /**
             * @description The tenant of the application: its id, or a domain of it.
             * @example contoso.onmicrosoft.com
             */
            tenantId?: string;
            /**
             * @description The application.
             * @example 00001111-aaaa-2222-bbbb-3333cccc4444
             */
            clientId?: string;
            /**
             * @description The secret of the application.
             * @example a-client-secret
             */
            clientSecret?: string;
        };
        /** MoveFile */
        MoveFile: {
            /**
             * @description Absolute path of what is moved.
             * @example /home/user/notes.txt
             */
            from?: string;
            /**
             * @description The same, percent-encoded: for paths that are not UTF-8. One of the two.
             * @example /data/caf%E9.txt
             */
            from_encoded?: string;
            /**
             * @description Absolute path that it gets.
             * @example /home/user/notes.txt
             */
            to?: string;
            /**
             * @description The same, percent-encoded. One of the two.
             * @example /data/caf%E9.txt
             */
            to_encoded?: string;
            /**
             * @description Replace what is there, in one step; a directory only if it is empty.
             * @default false
             * @example false
             */
            overwrite?: boolean;
        } & ((unknown | unknown) & (unknown | unknown));
        /** NamedSandboxConnection */
        NamedSandboxConnection: {
            /**
             * Format: uri
             * @description WebSocket URL of the sandbox at its host, with a signed token.
             * @example wss://host-1.example/sandboxes/01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f?token=eyJz
             */
            url: string;
            /**
             * Format: date-time
             * @description Until when the URL can be used to connect.
             * @example 2026-03-01T12:00:00.000Z
             */
            expires_at: string;
            sandbox: components["schemas"]["Sandbox"];
        };
        /** NetworkDecision */
        NetworkDecision: {
            /**
             * Format: date-time
             * @description Of the last of them.
             * @example 2026-03-01T12:00:00.000Z
             */
            time: string;
            /**
             * @description What the client asked for, if it named a host.
             * @example api.example.com
             */
            name?: string;
            /**
             * @description Where it connected to.
             * @example 198.51.100.7
             */
            address?: string;
            /**
             * @description How it connected.
             * @example tcp
             * @enum {unknown}
             */
            protocol: "tcp" | "udp";
            /**
             * @description The port it connected to.
             * @example 443
             */
            port: number;
            /**
             * @description Whether they were let through.
             * @example true
             */
            allowed: boolean;
            /**
             * @description The target of the rule that decided; or default; closed: no sandbox reaches this address; dns: another resolver than its own; quic; unresolved: the name has no address; unnamed: it shows no name, and could be for one that a rule denies or brokers.
             * @example *.example.com
             */
            rule: string;
            /**
             * @description How many packets began such connections.
             * @example 3
             */
            count: number;
        };
        /**
         * NetworkPolicy
         * @description What the sandbox may connect to; an empty object restricts nothing.
         */
        NetworkPolicy: {
            /** @description What counts for connections that the sandbox begins. */
            egress?: {
                /**
                 * @description What counts for connections that no rule matches.
                 * @example allow
                 * @enum {string}
                 */
                default: "allow" | "deny";
                /**
                 * @description What is let through. One rule for a target, if it has headers or forward_url.
                 * @example [
                 *       "pypi.org",
                 *       "*.example.com"
                 *     ]
                 */
                allow?: (string | {
                    /**
                     * @description An IPv4 address, a CIDR block, a domain, or *. and a domain for its subdomains.
                     * @example *.example.com
                     */
                    target: string;
                    /** @description What is done to requests to the target; nothing, if it has no headers. */
                    transform?: {
                        /**
                         * @description Added to each request to the target; they replace those of the guest. Not those that say how a message is delimited or routed, such as host, content-length and connection.
                         * @example {
                         *       "authorization": "Bearer a-token"
                         *     }
                         */
                        headers?: {
                            [key: string]: string;
                        };
                    };
                    /**
                     * @description An https URL that requests to the target are sent to instead. At most 2048 characters in its normal form, without credentials and fragment.
                     * @example https://gateway.example.com
                     */
                    forward_url?: string;
                })[];
                /**
                 * @description Counts before allow.
                 * @example [
                 *       "203.0.113.0/24"
                 *     ]
                 */
                deny?: string[];
                /**
                 * @description Has every name looked up. Without it, where default is deny, only names that a rule allows are, and others do not exist (NXDOMAIN).
                 * @example open
                 * @enum {string}
                 */
                dns?: "open";
                /**
                 * @description A pause waits for requests to these hosts; * stands for any characters.
                 * @example [
                 *       "*.example.com"
                 *     ]
                 */
                drain_on_pause?: string[];
            };
        };
        /** PortToken */
        PortToken: {
            /**
             * @description SHA-256 of the token, in hex.
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            id: string;
            /**
             * @description TCP port inside the sandbox.
             * @example 8080
             */
            port: number;
            /**
             * Format: date-time
             * @description When the token was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            created_at: string;
            /**
             * Format: date-time
             * @description When it expires; absent when it never does.
             * @example 2026-03-01T12:00:00.000Z
             */
            expires_at?: string;
            /**
             * @description `<port>-<route-id>.<zone>`; the same for as long as the sandbox lives.
             * @example 8080-k3v9q2.sbx.localhost
             */
            hostname: string;
        };
        /** RevokeDelegation */
        RevokeDelegation: {
            /**
             * @description The command that holds the lease.
             * @example exec-0a1b2c3d
             */
            clientId: string;
            /**
             * @description Inode of the path.
             * @example 12
             */
            inodeId: number;
        };
        /**
         * RootAttrs
         * @description Owner and mode of the root directory.
         */
        RootAttrs: {
            /**
             * @description User id.
             * @example 1000
             */
            uid?: number;
            /**
             * @description Group id.
             * @example 1000
             */
            gid?: number;
            /**
             * @description Permissions as a decimal number: 493 is 0755.
             * @example 493
             */
            mode?: number;
        };
        /** RunExec */
        RunExec: {
            /**
             * @description Run as `bash -c <command>` with the disk as working directory. At most 1 MiB in UTF-8.
             * @example ls -l | wc -l
             */
            command: string;
        };
        /** RunGrep */
        RunGrep: {
            /**
             * @description From the root of the disk; empty or `/`: the root.
             * @example logs
             */
            directory: string;
            /**
             * @description Extended regular expression of GNU grep -E, matched line by line. At most 64 KiB in UTF-8.
             * @example ERROR|FATAL
             */
            pattern: string;
            /**
             * @description Search subdirectories too.
             * @default false
             * @example false
             */
            recursive?: boolean;
            /**
             * @description Deadline, from the arrival of the request; never later than after 28 seconds. Values above 30 count as 30.
             * @default 30
             * @example 30
             */
            maxDurationSeconds?: number;
            /**
             * @description Workers at once, at most; never more than the processors that one search may use. Values above 100 count as 100.
             * @default 50
             * @example 50
             */
            concurrency?: number;
            /**
             * @description Matches after which the search stops. Values above 10000 count as 10000.
             * @default 1000
             * @example 1000
             */
            maxResults?: number;
        };
        /** RunMultiExec */
        RunMultiExec: {
            /**
             * @description Disks by the path below /mnt/service at which the command sees them. No path lies within another.
             * @example {
             *       "data": "dsk-0a1b2c3d4e5f6071"
             *     }
             */
            disks: {
                [key: string]: string | components["schemas"]["DiskMount"];
            };
            /**
             * @description Run as `bash -c <command>` with the disk as working directory. At most 1 MiB in UTF-8.
             * @example ls -l | wc -l
             */
            command: string;
        };
        /** Sandbox */
        Sandbox: {
            /**
             * Format: uuid
             * @description Id of the sandbox.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            sandbox_id: string;
            /**
             * @description Unique in the account.
             * @example build-box
             */
            name: string;
            /**
             * @description See docs/sandboxes.md.
             * @example pending
             * @enum {unknown}
             */
            status: "pending" | "running" | "pausing" | "paused" | "stopping" | "stopped" | "exited" | "failed";
            /**
             * @description Virtual processors.
             * @example 1
             */
            vcpu_count: number;
            /**
             * @description Memory in MiB.
             * @example 2048
             */
            mem_size_mib: number;
            /**
             * @description Paused when it has run for so long.
             * @example 86400
             */
            max_ttl_seconds: number;
            /**
             * @description Paused when nothing was done in it for so long; 0: never.
             * @example 0
             */
            idle_ttl_seconds: number;
            /**
             * @description How many commands may run at once.
             * @example 32
             */
            max_concurrent_execs: number;
            /**
             * @description Whether every port on which a service in it listens is public.
             * @example true
             */
            enable_service_ingress: boolean;
            /**
             * @description The reference as the caller gave it, or what the image is when none was given.
             * @example debian:12
             */
            base_image: string;
            /** @description What the image really is. */
            image?: {
                /**
                 * @description Of the distribution.
                 * @example debian
                 */
                name: string;
                /**
                 * @description Of its release.
                 * @example 12
                 */
                version: string;
                /**
                 * @description Tells one build from another.
                 * @example b8147a3e43b0
                 */
                key: string;
            };
            /**
             * @description Its own disk, as the refusal of a deletion names it.
             * @example dsk-0a1b2c3d4e5f6071
             */
            root_disk_id: string;
            /**
             * @description Names its memory while it is pausing, paused, stopping or stopped.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            checkpoint?: string;
            /** @description Disks that are mounted in it. */
            mounts: components["schemas"]["SandboxMount"][];
            /**
             * Format: date-time
             * @description When it was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            created_at: string;
            /**
             * Format: date-time
             * @description When it was last used.
             * @example 2026-03-01T12:00:00.000Z
             */
            last_active_at: string;
            /**
             * @description What its programs are built for.
             * @example amd64
             * @enum {unknown}
             */
            platform: "amd64" | "arm64";
            /**
             * @description Of the image, once it is known; the default image has none.
             * @example sha256:5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a5f3a
             */
            image_digest?: string;
            /**
             * Format: uuid
             * @description The snapshot that it was created from.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            snapshot_id?: string;
            /**
             * Format: uuid
             * @description The sandbox that it was forked from.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            forked_from?: string;
            /** @description Ports that services in it publish. */
            endpoints: {
                /**
                 * @description TCP port inside.
                 * @example 8080
                 */
                port: number;
                /**
                 * @description Where it is reached from outside.
                 * @example 8080-k3v9q2.sbx.localhost
                 */
                hostname: string;
            }[];
            network?: components["schemas"]["ShownNetworkPolicy"];
            /**
             * @description The command that runs in its copies (docs/snapshots.md).
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
            /** @description The hook that ran, or is to run, in this copy. The copy continues anyway. */
            copy_hook_result?: {
                /**
                 * @description How it ended, or how far it has come.
                 * @example pending
                 * @enum {unknown}
                 */
                status: "pending" | "running" | "completed" | "failed" | "timed_out" | "interrupted" | "unsupported";
                /**
                 * @description Of its shell.
                 * @example 0
                 */
                exit_code?: number;
                /**
                 * @description What went wrong, in words.
                 * @example it was killed after 10 s
                 */
                message?: string;
            };
            /**
             * Format: date-time
             * @description When it came to run the last time.
             * @example 2026-03-01T12:00:00.000Z
             */
            running_at?: string;
            /**
             * Format: date-time
             * @description While it runs: when its time limits pause it, unless it is used until then.
             * @example 2026-03-01T12:00:00.000Z
             */
            expires_at?: string;
            /**
             * Format: date-time
             * @description When it ended, if it has.
             * @example 2026-03-01T12:00:00.000Z
             */
            finished_at?: string;
            /**
             * @description Why it ended, for programs.
             * @example stopped
             */
            exit_reason?: string;
            /**
             * @description The reason in words.
             * @example the guest shut down as asked
             */
            exit_message?: string;
        };
        /** SandboxConnection */
        SandboxConnection: {
            /**
             * Format: uri
             * @description WebSocket URL of the sandbox at its host, with a signed token.
             * @example wss://host-1.example/sandboxes/01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f?token=eyJz
             */
            url: string;
            /**
             * Format: date-time
             * @description Until when the URL can be used to connect.
             * @example 2026-03-01T12:00:00.000Z
             */
            expires_at: string;
        };
        /** SandboxDeletionFailure */
        SandboxDeletionFailure: {
            /**
             * @description The call failed.
             * @constant
             */
            success: false;
            /**
             * @description What went wrong and what to do about it, for people.
             * @example disk dsk-0a1b2c3d4e5f6071 not found
             */
            error: string;
            /**
             * @description What went wrong, for programs.
             * @example not_found
             */
            code?: string;
            /**
             * @description With sandbox_has_forks: how many there are.
             * @example 2
             */
            child_disk_count?: number;
            /** @description The root disks of those to delete first, deepest first. */
            child_disk_ids?: string[];
        };
        /** SandboxExec */
        SandboxExec: {
            /**
             * Format: uuid
             * @description The sandbox that it runs in.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            sandbox_id: string;
            /**
             * Format: uuid
             * @description Id of the command.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            exec_id: string;
            /**
             * @description As it was given.
             * @example make test
             */
            command: string;
            /**
             * @description Whether it runs, or how it ended.
             * @example running
             * @enum {unknown}
             */
            status: "running" | "completed" | "failed" | "cancelled" | "timed_out";
            /**
             * Format: date-time
             * @description When it began.
             * @example 2026-03-01T12:00:00.000Z
             */
            started_at: string;
            /**
             * Format: date-time
             * @description When it ended.
             * @example 2026-03-01T12:00:00.000Z
             */
            finished_at?: string;
            /**
             * @description As shells show it: 128 and the signal when one ended the command.
             * @example 0
             */
            exit_code?: number;
            /**
             * @description How it ended, in words.
             * @example exit code 0
             */
            exit_reason?: string;
            /**
             * @description Milliseconds from its start to its end.
             * @example 1250
             */
            execute_time_ms?: number;
            /**
             * @description What it wrote; not in lists.
             * @example ok
             */
            stdout?: string;
            /**
             * @description The same of its standard error.
             * @example
             */
            stderr?: string;
            /**
             * @description Only if true: lists show the beginning of long commands.
             * @example true
             */
            command_truncated?: boolean;
            /**
             * @description Only if true: the beginning of the output was dropped.
             * @example true
             */
            output_truncated?: boolean;
        };
        /** SandboxFile */
        SandboxFile: {
            /**
             * @description Absolute path; bytes that are not UTF-8 show as U+FFFD.
             * @example /home/user/notes.txt
             */
            path: string;
            /**
             * @description The path percent-encoded, when it is not UTF-8.
             * @example /data/caf%E9.txt
             */
            path_encoded?: string;
            /**
             * @description What it is.
             * @example file
             * @enum {unknown}
             */
            type: "file" | "directory" | "link" | "fifo" | "socket" | "block_device" | "character_device";
            /**
             * @description In bytes.
             * @example 1024
             */
            size: number;
            /**
             * @description Permissions, in octal.
             * @example 0644
             */
            mode: string;
            /**
             * @description Number of its user.
             * @example 1000
             */
            uid: number;
            /**
             * @description Number of its group.
             * @example 1000
             */
            gid: number;
            /**
             * Format: date-time
             * @description When its content was last changed, by the clock of the sandbox.
             * @example 2026-03-01T12:00:00.000Z
             */
            modified_at: string;
            /**
             * @description Of a file: changes with its content. As in the header `ETag`.
             * @example "5f3a9c"
             */
            etag?: string;
            /**
             * @description Of a link: where it leads.
             * @example ../notes.txt
             */
            target?: string;
        };
        /** SandboxFileList */
        SandboxFileList: {
            /** @description In the order of their bytes. */
            entries: components["schemas"]["SandboxFile"][];
        };
        /** SandboxMount */
        SandboxMount: {
            /**
             * @description Id of the disk.
             * @example dsk-0a1b2c3d4e5f6071
             */
            disk_id: string;
            /**
             * @description Where it is mounted.
             * @example /mnt/data
             */
            path: string;
            /**
             * @description The directory that is mounted.
             * @example reports
             */
            subdirectory?: string;
            /**
             * @description Only if true.
             * @example true
             */
            read_only?: boolean;
        };
        /** SandboxMountInput */
        SandboxMountInput: {
            /**
             * @description Id of the disk.
             * @example dsk-0a1b2c3d4e5f6071
             */
            disk_id: string;
            /**
             * @description Absolute path in the sandbox, outside the directories of the system. May be omitted for a sole mount: /mnt/service then.
             * @example /mnt/data
             */
            path?: string;
            /**
             * @description Directory of the disk to mount instead of all of it; it must exist.
             * @example reports
             */
            subdirectory?: string;
            /**
             * @description Whether writes to it fail, with EROFS.
             * @default false
             * @example false
             */
            read_only?: boolean;
            /**
             * @description Without effect: other writers may always use the disk, too.
             * @example true
             */
            conditional?: boolean;
            /**
             * @description Refused: sandboxes check nothing out.
             * @example 5000
             */
            queue_ms?: number;
            /**
             * @description Refused: sandboxes check nothing out.
             * @example [
             *       "a"
             *     ]
             */
            checkout_paths?: string[];
        };
        /** SandboxPort */
        SandboxPort: {
            /**
             * @description TCP port inside the sandbox.
             * @example 8080
             */
            port: number;
            /**
             * @description `<port>-<route-id>.<zone>`; the same for as long as the sandbox lives.
             * @example 8080-k3v9q2.sbx.localhost
             */
            hostname: string;
        };
        /** SandboxProcess */
        SandboxProcess: {
            /**
             * Format: uuid
             * @description Id of the process; sessions attach to it by this id.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            process_id: string;
            /**
             * @description Whether it runs, or how it ended.
             * @example running
             * @enum {unknown}
             */
            status: "running" | "completed" | "failed" | "cancelled" | "timed_out";
            /**
             * @description Its number in the sandbox, also after its end.
             * @example 412
             */
            pid: number;
            /**
             * @description As it was given. Absent when the agent of the host, or the sandbox, was started anew since.
             * @example bash -l
             */
            command?: string;
            /**
             * @description Only if true: the command is longer and was cut.
             * @example true
             */
            command_truncated?: boolean;
            /** @description Size of its terminal; absent when it has none. */
            terminal?: {
                /**
                 * @description Columns.
                 * @example 80
                 */
                cols: number;
                /**
                 * @description Rows.
                 * @example 24
                 */
                rows: number;
            };
            /**
             * @description How many sessions are attached to it.
             * @example 1
             */
            attached_clients: number;
            /**
             * @description How much it has written, also what is not kept any more.
             * @example 2048
             */
            output_bytes: number;
            /**
             * Format: date-time
             * @description When it ended.
             * @example 2026-03-01T12:00:00.000Z
             */
            ended_at?: string;
            /**
             * @description As shells show it: 128 and the signal when one ended it.
             * @example 0
             */
            exit_code?: number;
            /**
             * @description How it ended, in words.
             * @example exit code 1
             */
            exit_reason?: string;
        };
        /** SandboxTimeout */
        SandboxTimeout: {
            /**
             * @description Seconds from now; together with what it has run already at most 24 hours.
             * @example 3600
             */
            timeout?: number;
            /**
             * @description Seconds without use after which it is paused; 0: never.
             * @example 600
             */
            idle_ttl_seconds?: number;
        } | unknown | unknown;
        /** SandboxUsage */
        SandboxUsage: {
            /**
             * Format: date-time
             * @description When it was measured.
             * @example 2026-03-01T12:00:00.000Z
             */
            measured_at: string;
            /**
             * @description Processor time that its machine has used since it was started or resumed last, all processors together.
             * @example 12.5
             */
            cpu_seconds?: number;
            /**
             * @description Memory of the host that its machine holds, without cache that could be given back at once.
             * @example 188743680
             */
            memory_bytes?: number;
            /**
             * @description Storage that its disk and its checkpoint take, what it shares with forks included.
             * @example 25165824
             */
            stored_bytes: number;
            /**
             * @description Bytes that came to it over the network since it was started or resumed last.
             * @example 10485760
             */
            network_received_bytes?: number;
            /**
             * @description Bytes that it has sent since then.
             * @example 524288
             */
            network_sent_bytes?: number;
        };
        /** ShareUrl */
        ShareUrl: {
            /**
             * Format: uri
             * @description Downloads the file; whoever has it needs nothing else.
             * @example https://berth.example/api/shared/eyJhIjoi
             */
            url: string;
            /**
             * @description Seconds for which the link works.
             * @example 3600
             */
            expiresIn: number;
        };
        /**
         * ShownNetworkPolicy
         * @description What the sandbox may connect to, without secrets.
         */
        ShownNetworkPolicy: {
            /** @description What counts for connections that the sandbox begins. */
            egress?: {
                /**
                 * @description What counts for connections that no rule matches.
                 * @example allow
                 * @enum {string}
                 */
                default: "allow" | "deny";
                /**
                 * @description What is let through. One rule for a target, if it has headers or forward_url.
                 * @example [
                 *       "pypi.org",
                 *       "*.example.com"
                 *     ]
                 */
                allow?: (string | {
                    /**
                     * @description An IPv4 address, a CIDR block, a domain, or *. and a domain for its subdomains.
                     * @example *.example.com
                     */
                    target: string;
                    /** @description What is done to requests to the target; nothing, if it has no headers. */
                    transform?: {
                        /**
                         * @description Added to each request to the target; they replace those of the guest. Not those that say how a message is delimited or routed, such as host, content-length and connection.
                         * @example {
                         *       "authorization": null
                         *     }
                         */
                        headers: {
                            [key: string]: null;
                        };
                    };
                    /**
                     * @description Its origin only: the rest may be secret.
                     * @example https://gateway.example.com
                     */
                    forward_url?: string;
                })[];
                /**
                 * @description Counts before allow.
                 * @example [
                 *       "203.0.113.0/24"
                 *     ]
                 */
                deny?: string[];
                /**
                 * @description Has every name looked up. Without it, where default is deny, only names that a rule allows are, and others do not exist (NXDOMAIN).
                 * @example open
                 * @enum {string}
                 */
                dns?: "open";
                /**
                 * @description A pause waits for requests to these hosts; * stands for any characters.
                 * @example [
                 *       "*.example.com"
                 *     ]
                 */
                drain_on_pause?: string[];
            };
        };
        /** Snapshot */
        Snapshot: {
            /**
             * Format: uuid
             * @description Id of the snapshot.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            snapshot_id: string;
            /**
             * @description Unique in the account.
             * @example after-setup
             */
            name: string;
            /**
             * @description Whether it can be used.
             * @example creating
             * @enum {unknown}
             */
            status: "creating" | "ready" | "failed";
            /**
             * Format: uuid
             * @description The sandbox that it was made of.
             * @example 01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f
             */
            sandbox_id: string;
            /**
             * @description Whether its sandboxes continue from memory.
             * @example true
             */
            has_memory: boolean;
            /**
             * @description Virtual processors of its sandboxes.
             * @example 1
             */
            vcpu_count: number;
            /**
             * @description Memory of its sandboxes in MiB.
             * @example 2048
             */
            mem_size_mib: number;
            /**
             * @description The image that the disk began with.
             * @example debian:12
             */
            base_image: string;
            /** @description Disks that its sandboxes mount. */
            mounts: components["schemas"]["SandboxMount"][];
            /**
             * @description The command that runs in its sandboxes (docs/snapshots.md).
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
            /**
             * @description What its files take on its host, those included that its sandboxes share.
             * @example 1048576
             */
            size_bytes: number;
            /**
             * @description Sandboxes that were created from it.
             * @example 3
             */
            sandbox_count: number;
            /**
             * @description Its own disk, as the refusal of a deletion names it.
             * @example dsk-0a1b2c3d4e5f6071
             */
            root_disk_id: string;
            /**
             * @description What its programs are built for.
             * @example amd64
             * @enum {unknown}
             */
            platform: "amd64" | "arm64";
            network: components["schemas"]["ShownNetworkPolicy"];
            /**
             * Format: date-time
             * @description When it was made.
             * @example 2026-03-01T12:00:00.000Z
             */
            created_at: string;
            /**
             * @description In words, when it has failed.
             * @example the storage of the host is full
             */
            failure_reason?: string;
        };
        /** StartSandbox */
        StartSandbox: {
            /** @description Disks of the account that the sandbox sees as directories. Each disk once, no path within another. */
            mounts?: components["schemas"]["SandboxMountInput"][] | unknown | unknown;
            /**
             * @description Shell command that runs in each copy that continues from memory (a fork, a sandbox from a snapshot), while all its other processes are frozen; killed after 10 s. At most 8 KiB; empty: none.
             * @example kill -HUP $(cat /run/server.pid)
             */
            copy_hook?: string;
        };
        /** Usage */
        Usage: {
            /**
             * @description The month in UTC.
             * @example 2026-11
             */
            month: string;
            /**
             * @description The region that was measured.
             * @example local-dev
             */
            region: string;
            /**
             * @description Virtual processors of sandboxes, times the seconds that they held them.
             * @example 7200.5
             */
            vcpuSeconds: number;
            /**
             * @description GiB of memory of sandboxes, times the seconds that they held it.
             * @example 14401
             */
            memoryGibSeconds: number;
            /**
             * @description Bytes in use on disks, times hours.
             * @example 1073741824
             */
            storageByteHours: number;
            /**
             * @description Calls with a key of the account, refused ones too.
             * @example 1200
             */
            requests: number;
            /**
             * @description Commands on disks and in sandboxes that calls have begun.
             * @example 340
             */
            execs: number;
            /** @description What the operator lets the account have now; no limit where one is absent. */
            limits: {
                /**
                 * @description Virtual processors of all sandboxes together.
                 * @example 8
                 */
                vcpus?: number;
                /**
                 * @description Memory of all sandboxes together, in MiB.
                 * @example 16384
                 */
                memoryMib?: number;
                /**
                 * @description Sandboxes in every state.
                 * @example 20
                 */
                sandboxes?: number;
                /**
                 * @description Disks.
                 * @example 50
                 */
                disks?: number;
                /**
                 * @description Bytes in use on all disks together.
                 * @example 107374182400
                 */
                diskBytes?: number;
                /**
                 * @description Calls per second with keys of the account.
                 * @example 50
                 */
                requestsPerSecond?: number;
            };
        };
        /** Webhook */
        Webhook: {
            /**
             * @description Id of the webhook.
             * @example 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
             */
            id: string;
            /**
             * @description Where events are sent.
             * @example https://hooks.example.com/berth
             */
            url: string;
            /**
             * @description The types of events that are sent; all of them when this is left out.
             * @example [
             *       "sandbox.created"
             *     ]
             */
            eventTypes?: ("account.limits_changed" | "disk.created" | "disk.deleted" | "disk.allowed_ips_changed" | "disk.allowed_origins_changed" | "disk.credentials_changed" | "disk.delegation_revoked" | "disk.exec" | "disk.shared" | "disk.user_added" | "disk.user_removed" | "host.cordoned" | "host.drained" | "host.fenced" | "host.invited" | "host.joined" | "host.removed" | "host.uncordoned" | "image.requested" | "key.created" | "key.deleted" | "sandbox.connected" | "sandbox.created" | "sandbox.deleted" | "sandbox.directory_created" | "sandbox.exec" | "sandbox.exec_cancelled" | "sandbox.file_moved" | "sandbox.file_removed" | "sandbox.file_written" | "sandbox.forked" | "sandbox.limits_changed" | "sandbox.network_changed" | "sandbox.paused" | "sandbox.port_closed" | "sandbox.port_exposed" | "sandbox.port_token_created" | "sandbox.port_token_deleted" | "sandbox.resumed" | "sandbox.started" | "sandbox.stopped" | "snapshot.created" | "snapshot.deleted" | "webhook.created" | "webhook.deleted")[];
            /**
             * Format: date-time
             * @description When the webhook was created.
             * @example 2026-03-01T12:00:00.000Z
             */
            createdAt: string;
        };
        /** WebhookDelivery */
        WebhookDelivery: {
            /**
             * @description The event, and `webhook-id`.
             * @example 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
             */
            eventId: string;
            /**
             * @description Its type.
             * @example sandbox.created
             */
            eventType: string;
            /**
             * @description Counts from 1.
             * @example 1
             */
            attempt: number;
            /**
             * Format: date-time
             * @description When the attempt ended.
             * @example 2026-03-01T12:00:00.000Z
             */
            attemptedAt: string;
            /**
             * @description The receiver answered with 2xx.
             * @example true
             */
            isDelivered: boolean;
            /**
             * @description What it answered, if it did.
             * @example 204
             */
            status?: number;
            /**
             * @description Why it was not delivered.
             * @example no answer in time
             */
            problem?: string;
            /**
             * @description How long the attempt took.
             * @example 87
             */
            durationMs: number;
            /**
             * @description Another attempt follows.
             * @example true
             */
            willRetry: boolean;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: {
        /** @description Names the query parameters and the fields of the request body that were ignored because the endpoint has no such parameter or field, as in `?size, colour, mounts[0].foo`. Absent when there are none. */
        IgnoredFields: string;
    };
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    listDisks: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
                /** @description Only the disk of this name. */
                name?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Disk"][];
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    createDisk: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateDisk"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["CreatedDisk"];
                    };
                };
            };
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["CreatedDisk"];
                    };
                };
            };
        };
    };
    getDisk: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Disk"];
                    };
                };
            };
        };
    };
    deleteDisk: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                    };
                };
            };
        };
    };
    getAllowedIps: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["AllowedIps"];
                    };
                };
            };
        };
    };
    setAllowedIps: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AllowedIps"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["AllowedIps"];
                    };
                };
            };
        };
    };
    getAllowedOrigins: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["AllowedOrigins"];
                    };
                };
            };
        };
    };
    setAllowedOrigins: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AllowedOrigins"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["AllowedOrigins"];
                    };
                };
            };
        };
    };
    listDelegations: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Held ones and awaited ones. */
                            delegations: components["schemas"]["Delegation"][];
                        };
                    };
                };
            };
        };
    };
    revokeDelegation: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RevokeDelegation"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Message"];
                    };
                };
            };
        };
    };
    setMountCredentials: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
                /** @description Id of the mount. */
                mountId: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MountCredentials"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["BucketMount"];
                    };
                };
            };
        };
    };
    addDiskUser: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * @description A user with a disk token.
                     * @constant
                     */
                    type: "token";
                    /**
                     * @description For people.
                     * @example ci
                     */
                    nickname: string;
                    /**
                     * @deprecated
                     * @description A token chosen by the caller, not an API key; needs tokenSuffix. Leave it out and one is made.
                     * @example a-token-of-my-own-choice
                     */
                    principal?: string;
                    /**
                     * @deprecated
                     * @description The last four characters of `principal`.
                     * @example oice
                     */
                    tokenSuffix?: string;
                    /**
                     * @description How long its credentials work: a duration such as `90s`, `4m` or `1h30m`, more than 0 and at most 8760h. Not together with expiresAt.
                     * @example 24h
                     */
                    ttl?: string;
                    /**
                     * Format: date-time
                     * @description When its credentials stop working; without it and ttl they do not end.
                     * @example 2026-03-01T12:00:00.000Z
                     */
                    expiresAt?: string;
                    /**
                     * @description No user is of one use.
                     * @constant
                     */
                    oneUse?: false;
                    /**
                     * @description Every user may write.
                     * @constant
                     */
                    readOnly?: false;
                } | {
                    /**
                     * @description A role of a cloud account.
                     * @example cloudsts
                     * @enum {unknown}
                     */
                    type: "cloudsts" | "awssts";
                    /**
                     * @description Names the role.
                     * @example arn:aws:iam::123456789012:role/reader
                     */
                    principal: string;
                    /**
                     * @description How long its credentials work: a duration such as `90s`, `4m` or `1h30m`, more than 0 and at most 8760h. Not together with expiresAt.
                     * @example 24h
                     */
                    ttl?: string;
                    /**
                     * Format: date-time
                     * @description When its credentials stop working; without it and ttl they do not end.
                     * @example 2026-03-01T12:00:00.000Z
                     */
                    expiresAt?: string;
                    /**
                     * @description No user is of one use.
                     * @constant
                     */
                    oneUse?: false;
                    /**
                     * @description Every user may write.
                     * @constant
                     */
                    readOnly?: false;
                };
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["DiskUser"];
                    };
                };
            };
        };
    };
    removeDiskUser: {
        parameters: {
            query?: {
                /** @description The `identifier` of the user. Required, unless `principal` names it. */
                identifier?: string;
                /**
                 * @deprecated
                 * @description Use identifier.
                 */
                principal?: string;
            };
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
                /** @description The `type` of the user. */
                userType: "token" | "cloudsts" | "awssts";
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Message"];
                    };
                };
            };
        };
    };
    createShareUrl: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateShareUrl"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ShareUrl"];
                    };
                };
            };
        };
    };
    downloadShared: {
        parameters: {
            query?: never;
            header?: {
                /** @description Asks for parts of the file. */
                Range?: string;
                /** @description Parts only while the file has this tag or date; else all of it. */
                "If-Range"?: string;
                /** @description Only while the file has one of these tags. */
                "If-Match"?: string;
                /** @description Only when the file has none of these tags; else 304. */
                "If-None-Match"?: string;
                /** @description Only when it has changed since; else 304. */
                "If-Modified-Since"?: string;
                /** @description Only while it has not changed since. */
                "If-Unmodified-Since"?: string;
            };
            path: {
                /** @description The last part of the link. */
                token: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "*/*": string;
                };
            };
            /** @description A part of the file, or several */
            206: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "*/*": string;
                };
            };
            /** @description Not modified */
            304: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    execOnDisk: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RunExec"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ExecResult"];
                    };
                };
            };
        };
    };
    execOnDisks: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RunMultiExec"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ExecResult"];
                    };
                };
            };
        };
    };
    grepDisk: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RunGrep"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["GrepResult"];
                    };
                };
            };
        };
    };
    streamGrep: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the disk. */
                id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RunGrep"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
        };
    };
    listSandboxes: {
        parameters: {
            query?: {
                /** @description Only sandboxes that mount this disk. */
                filesystem?: string;
                /** @description Only the sandbox of this name. */
                name?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Oldest first. */
                            sandboxes: components["schemas"]["Sandbox"][];
                        };
                    };
                };
            };
        };
    };
    createSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["CreateSandbox"];
            };
        };
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    getSandbox: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    deleteSandbox: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    getSandboxMetrics: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxUsage"];
                    };
                };
            };
        };
    };
    startSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["StartSandbox"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    stopSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    pauseSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    resumeSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    forkSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["ForkSandbox"];
            };
        };
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    setSandboxLimits: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SandboxTimeout"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Sandbox"];
                    };
                };
            };
        };
    };
    listSandboxExecs: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description In the order of their execution. */
                            execs: components["schemas"]["SandboxExec"][];
                        };
                    };
                };
            };
        };
    };
    execInSandbox: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ExecInSandbox"];
            };
        };
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxExec"];
                    };
                };
            };
        };
    };
    getSandboxExec: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description Id of the command: a UUID, in upper or lower case. */
                eid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxExec"];
                    };
                };
            };
        };
    };
    cancelSandboxExec: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description Id of the command: a UUID, in upper or lower case. */
                eid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxExec"];
                    };
                };
            };
        };
    };
    connectSandboxByName: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ConnectByName"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["NamedSandboxConnection"];
                    };
                };
            };
        };
    };
    connectSandbox: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxConnection"];
                    };
                };
            };
        };
    };
    listSandboxProcesses: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Those that run, and those that ended within the last 15 minutes, in no order. */
                            processes: components["schemas"]["SandboxProcess"][];
                        };
                    };
                };
            };
        };
    };
    readSandboxFile: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description Whether a link at the end of the path stands for what it leads to. */
                follow?: boolean;
            };
            header?: {
                /** @description Asks for parts of the file. */
                Range?: string;
                /** @description Parts only while the file has this tag or date; else all of it. */
                "If-Range"?: string;
                /** @description Only while the file has one of these tags. */
                "If-Match"?: string;
                /** @description Only when the file has none of these tags; else 304. */
                "If-None-Match"?: string;
                /** @description Only when it has changed since; else 304. */
                "If-Modified-Since"?: string;
                /** @description Only while it has not changed since. */
                "If-Unmodified-Since"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "*/*": string;
                };
            };
            /** @description A part of the file, or several */
            206: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "*/*": string;
                };
            };
            /** @description Not modified */
            304: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    writeSandboxFile: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description Permissions, in octal. Of a new one 0644 when omitted; else they stay. */
                mode?: string;
                /** @description Number of the user. Of a new one that of the sandbox's default user; else it stays. */
                uid?: number;
                /** @description Number of the group. Of a new one that of the sandbox's default user; else it stays. */
                gid?: number;
                /** @description Make the directories above it that are missing, with mode 0755 and its owner. */
                parents?: boolean;
                /** @description Whether a link at the end of the path stands for what it leads to. */
                follow?: boolean;
                /** @description Answer when file and directory are on the disk, and survive a crash. */
                sync?: boolean;
            };
            header?: {
                /** @description Only while the file has one of these tags. */
                "If-Match"?: string;
                /** @description Only when there is no such file (`*`), or none with these tags. */
                "If-None-Match"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "*/*": string;
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
        };
    };
    removeSandboxFile: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description A directory goes with all that is in it. */
                recursive?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listSandboxFiles: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description Whether a link at the end of the path stands for what it leads to. */
                follow?: boolean;
                /** @description Also what is in the directories below it. */
                recursive?: boolean;
                /** @description How many entries a page has at most; what is above 5000 counts as that. A page may have fewer. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFileList"];
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    statSandboxFile: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description Whether a link at the end of the path stands for what it leads to. */
                follow?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
        };
    };
    moveSandboxFile: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MoveFile"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
        };
    };
    createSandboxDirectory: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateDirectory"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxFile"];
                    };
                };
            };
        };
    };
    watchSandboxFiles: {
        parameters: {
            query: {
                /** @description Absolute path in the sandbox: any bytes but NUL, percent-encoded, at most 4095. */
                path: string;
                /** @description Whether a link at the end of the path stands for what it leads to. */
                follow?: boolean;
                /** @description Also what is in the directories below it. */
                recursive?: boolean;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
        };
    };
    getSandboxNetwork: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ShownNetworkPolicy"];
                    };
                };
            };
        };
    };
    setSandboxNetwork: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NetworkPolicy"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ShownNetworkPolicy"];
                    };
                };
            };
        };
    };
    listSandboxNetworkDecisions: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Newest first. */
                            decisions: components["schemas"]["NetworkDecision"][];
                        };
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    listSandboxPorts: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description In ascending order. */
                            ports: components["schemas"]["SandboxPort"][];
                        };
                    };
                };
            };
        };
    };
    exposeSandboxPort: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description TCP port inside the sandbox. */
                port: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxPort"];
                    };
                };
            };
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["SandboxPort"];
                    };
                };
            };
        };
    };
    unexposeSandboxPort: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description TCP port inside the sandbox. */
                port: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listSandboxPortTokens: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
            };
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Oldest first. */
                            tokens: components["schemas"]["PortToken"][];
                        };
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    createSandboxPortToken: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreatePortToken"];
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["CreatedPortToken"];
                    };
                };
            };
        };
    };
    getSandboxPortToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description Id of the token. */
                tokenId: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["PortToken"];
                    };
                };
            };
        };
    };
    deleteSandboxPortToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
                /** @description Id of the token. */
                tokenId: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    createSnapshot: {
        parameters: {
            query?: {
                /** @description Hold the answer until what was begun has ended, at most 20 s. */
                wait?: boolean;
            };
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path: {
                /** @description Id of the sandbox: a UUID, in upper or lower case. */
                sid: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateSnapshot"];
            };
        };
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Snapshot"];
                    };
                };
            };
        };
    };
    listSnapshots: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Snapshot"][];
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    getSnapshot: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the snapshot: a UUID, in upper or lower case. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Snapshot"];
                    };
                };
            };
        };
    };
    deleteSnapshot: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the snapshot: a UUID, in upper or lower case. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listApiKeys: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Oldest first. */
                            tokens: components["schemas"]["ApiKey"][];
                        };
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    createApiKey: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateApiKey"];
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["CreatedApiKey"];
                    };
                };
            };
        };
    };
    deleteApiKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the key. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /**
                             * @description What was done, for people.
                             * @example User removed
                             */
                            message: string;
                            ended: components["schemas"]["EndedWithKey"];
                        };
                    };
                };
            };
        };
    };
    listActivity: {
        parameters: {
            query?: {
                /** @description The most items on a page; a larger number counts as the maximum. */
                limit?: number;
                /** @description The `nextCursor` of the page before; left out for the first page. */
                cursor?: string;
                /** @description Only what was about this disk. */
                diskId?: string;
                /** @description Only what was about this sandbox, also as the copy that a fork made. */
                sandboxId?: string;
                /** @description Only events of this type; may be given several times. */
                eventType?: ("account.limits_changed" | "disk.created" | "disk.deleted" | "disk.allowed_ips_changed" | "disk.allowed_origins_changed" | "disk.credentials_changed" | "disk.delegation_revoked" | "disk.exec" | "disk.objects_deleted" | "disk.shared" | "disk.user_added" | "disk.user_removed" | "host.cordoned" | "host.drained" | "host.fenced" | "host.invited" | "host.joined" | "host.removed" | "host.uncordoned" | "image.requested" | "key.created" | "key.deleted" | "sandbox.connected" | "sandbox.created" | "sandbox.deleted" | "sandbox.directory_created" | "sandbox.exec" | "sandbox.exec_cancelled" | "sandbox.file_moved" | "sandbox.file_removed" | "sandbox.file_written" | "sandbox.forked" | "sandbox.limits_changed" | "sandbox.network_changed" | "sandbox.paused" | "sandbox.port_closed" | "sandbox.port_exposed" | "sandbox.port_token_created" | "sandbox.port_token_deleted" | "sandbox.resumed" | "sandbox.started" | "sandbox.stopped" | "snapshot.created" | "snapshot.deleted" | "webhook.created" | "webhook.deleted")[];
                /** @description `info`: done; `warning`: refused, so that nothing has changed; `error`: failed, possibly half-way. */
                level?: "info" | "warning" | "error";
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["ActivityEvent"][];
                        /**
                         * @description Asks for the next page; absent on the last one.
                         * @example MTcwOTI5NDQwMDAwMA
                         */
                        nextCursor?: string;
                    };
                };
            };
        };
    };
    getUsage: {
        parameters: {
            query?: {
                /** @description A month in UTC; the present one when it is left out. */
                month?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Usage"];
                    };
                };
            };
        };
    };
    listWebhooks: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description Oldest first. */
                            webhooks: components["schemas"]["Webhook"][];
                        };
                    };
                };
            };
        };
    };
    createWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes the request happen at most once: repeated within 24 hours with the same key and body, it gets the first answer again (Idempotency-Replayed: true). */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateWebhook"];
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["CreatedWebhook"];
                    };
                };
            };
        };
    };
    deleteWebhook: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the webhook. */
                webhookId: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Done */
            204: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listWebhookDeliveries: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the webhook. */
                webhookId: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /** @description The latest attempts, newest first. */
                            deliveries: components["schemas"]["WebhookDelivery"][];
                        };
                    };
                };
            };
        };
    };
    buildImage: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BuildImage"];
            };
        };
        responses: {
            /** @description Accepted */
            202: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Image"];
                    };
                };
            };
        };
    };
    getImage: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the image: 64 lowercase hexadecimal digits. */
                image_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Image"];
                    };
                };
            };
        };
    };
    listHosts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"][];
                    };
                };
            };
        };
    };
    getHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"];
                    };
                };
            };
        };
    };
    deleteHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Message"];
                    };
                };
            };
        };
    };
    cordonHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"];
                    };
                };
            };
        };
    };
    uncordonHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"];
                    };
                };
            };
        };
    };
    drainHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"];
                    };
                };
            };
        };
    };
    fenceHost: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the host. */
                id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: components["schemas"]["Host"];
                    };
                };
            };
        };
    };
    joinHost: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    /**
                     * @description Derived from the token of the invitation.
                     * @example Zx4v0tq1nM8c2s5e7h9k3b6d1f4a0yW_rTqLuPoJiGk
                     */
                    proof: string;
                    /**
                     * @description Made by the host at random. With the same one it may ask again when the answer was lost.
                     * @example p0O9i8U7y6T5r4E3w2Q1aSdFgHjKlZxCvBnM1234567
                     */
                    nonce: string;
                    /**
                     * @description How the host calls itself, for the audit.
                     * @example node-2
                     */
                    name: string;
                };
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    "X-Ignored-Fields": components["headers"]["IgnoredFields"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        /**
                         * @description The call succeeded.
                         * @constant
                         */
                        success: true;
                        data: {
                            /**
                             * @description The settings of the cluster, which only the token opens.
                             * @example q83vEjRWeJq83vEjRWeJq83vEjRWeJ
                             */
                            sealed: string;
                        };
                    };
                };
            };
        };
    };
}
